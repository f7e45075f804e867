"""Pass instruments: recording, timing, IR printing and verification."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO, TypeAlias

from compiler.errors import PassError, VerifyError
from compiler.ir.graph.graph import Graph
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import walk
from compiler.ir.tile.program import Program, walk_steps
from compiler.ir.verify.graph import verify_graph
from compiler.ir.verify.kernel import verify_kernel
from compiler.ir.verify.program import verify_program
from compiler.passes.base import Alternative, Context, Pass
from compiler.passes.manager import PassInstrument
from compiler.passes.pipeline_text import require_passes
from compiler.passes.remark import Remark

AnyPass: TypeAlias = Pass[Any]


def ir_size(ir: AnyIR) -> int:
    """Return the number of nodes of a graph, statements of a kernel, or steps of a program."""
    if isinstance(ir, Program):
        return sum(1 for _ in walk_steps(ir.steps))
    return len(ir.nodes) if isinstance(ir, Graph) else sum(1 for _ in walk(ir.body))


@dataclass(frozen=True)
class PassRun:
    """One run of a pass: its input and result (None if it failed), the alternatives that it proposed, and its rewrites.

    `made` is the number of rewrites that earlier runs made.
    """

    pass_: AnyPass
    before: AnyIR
    after: AnyIR | None = None
    seconds: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    rewrites: tuple[Remark, ...] = ()
    made: int = 0


@dataclass
class PassRecorder(PassInstrument):
    """Record every run of a pass, in order."""

    runs: list[PassRun] = field(default_factory=list)
    context: Context = field(default_factory=Context)
    _proposed: int = 0

    def before_pass(self, pass_: AnyPass, ir: AnyIR, context: Context) -> None:
        self.context, self._proposed = context, len(context.alternatives)
        self.runs.append(PassRun(pass_, ir, made=len(context.rewrites)))

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        run, alternatives = self.runs[-1], tuple(context.alternatives[self._proposed :])
        rewrites = tuple(context.rewrites[run.made :])
        self.runs[-1] = replace(run, after=new, seconds=seconds, alternatives=alternatives, rewrites=rewrites)


class PassTiming(PassRecorder):
    """Table of the runs of passes: CPU time, and the size of the IR before and after."""

    def __str__(self) -> str:
        lines = [f"{'ms':>9}  {'size':>6} -> {'size':<6}  pass"]
        for r in self.runs:
            size = ir_size(r.after or r.before)
            lines.append(f"{r.seconds * 1e3:9.2f}  {ir_size(r.before):6} -> {size:<6}  {r.pass_.name}")
        return "\n".join(lines)


@dataclass
class PrintIR(PassInstrument):
    """Print the IR before and after the named passes ("all" for every one); `on_change` prints it after each change.

    PassError for a name that no pass has.
    """

    before_passes: Sequence[str] = ()
    after_passes: Sequence[str] = ()
    on_change: bool = False
    file: TextIO | None = None

    def __post_init__(self) -> None:
        require_passes(name for name in (*self.before_passes, *self.after_passes) if name != "all")

    def before_pass(self, pass_: AnyPass, ir: AnyIR, context: Context) -> None:
        if _is_selected(pass_, self.before_passes):
            self._print(f"before {pass_.name}", ir)

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        changed = self.on_change and new is not old and print_ir(new) != print_ir(old)
        if changed or _is_selected(pass_, self.after_passes):
            self._print(f"after {pass_.name}", new)

    def _print(self, title: str, ir: AnyIR) -> None:
        print(f"// {title} (@{ir.name})\n{print_ir(ir)}", file=self.file or sys.stderr)


def _is_selected(pass_: AnyPass, names: Sequence[str]) -> bool:
    return "all" in names or pass_.name in names


def verify(ir: AnyIR) -> None:
    """Verify a graph, program or kernel; VerifyError if it breaks a rule of its IR."""
    if isinstance(ir, Graph):
        verify_graph(ir)
    elif isinstance(ir, Program):
        verify_program(ir)
    else:
        verify_kernel(ir)


class Verify(PassInstrument):
    """Verify the first input and the result of every pass; PassError names the pass."""

    def __init__(self) -> None:
        self._valid: dict[str, AnyIR] = {}  # by name; kernels take turns

    def before_pass(self, pass_: AnyPass, ir: AnyIR, context: Context) -> None:
        if ir is not self._valid.get(ir.name):
            try:
                verify(ir)
            except VerifyError as error:
                raise PassError(f"@{ir.name} is invalid before the first pass: {error}") from error

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        self._valid[new.name] = new
        if new is old:
            return
        try:
            verify(new)
        except VerifyError as error:
            raise PassError(f"pass {pass_.name} produced invalid IR for @{old.name}: {error}") from error
