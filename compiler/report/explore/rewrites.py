"""Rewrites inside a pass: the IR after each of them, as the pass shows it or from runs of the pass that stop there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import Recurrence
from compiler.ir.text.graph_printer import GraphPrinter
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context
from compiler.passes.instrument import ir_size
from compiler.passes.manager import run_on_nested_graphs
from compiler.passes.remark import Remark, Remarks
from compiler.report.explore.line_delta import Hunk, line_delta
from compiler.report.explore.origins import OriginLoc, origin_name, subject_of
from compiler.report.explore.page_data import Rewrite
from compiler.report.explore.recording import PassRun

MAX_WORK = 1_000_000
"""Most nodes or statements, over all states of the IR inside one pass, that are visited to show its rewrites."""

MAX_SUBJECTS = 4
"""Most subjects of a step of several rewrites that are named."""


class PagePrinter:
    """Printer of IR as the page shows it; states of one graph share the texts of their kernels."""

    def __init__(self) -> None:
        self.graphs = GraphPrinter(name_of=origin_name)

    def lines(self, ir: AnyIR) -> list[str]:
        """Return the lines of the text of IR."""
        return (self.graphs.print(ir) if isinstance(ir, Graph) else print_ir(ir)).splitlines()


def printed_lines(ir: AnyIR) -> list[str]:
    """Return the lines of the text of IR as the page shows it."""
    return PagePrinter().lines(ir)


@dataclass
class RewriteSteps:
    """Steps inside a run of a pass in a compilation with `context`; each makes up to `stride` rewrites.

    A pass is a pure function, so the IR after k rewrites is what it makes of its input if it may make k.  It is built so where the
    pass does not offer it while it runs.
    """

    run: PassRun
    context: Context
    stride: int
    steps: list[Rewrite] = field(default_factory=list)
    _printer: PagePrinter = field(default_factory=PagePrinter)

    def make(self) -> None:
        """Add all steps; TilewrightError if the pass fails where it stops early."""
        self._text, self._done = self._printer.lines(self.run.before), 0
        self._add(0, self._limited_run(0))
        if self.run.after is not None and not has_loops(self.run.before):
            made = list[Remark]()
            self._rerun(rewrites=made, on_state=lambda state: self._offer(len(made), state))
        self._fill(len(self.run.rewrites) + 1)

    def _offer(self, count: int, state: Callable[[], AnyIR]) -> None:
        """Add the steps to the IR after `count` rewrites, unless they are there."""
        self._fill(count)
        if count > self._done and self._is_end(count):
            self._add(count, state())

    def _fill(self, end: int) -> None:
        """Add the steps that are missing before that to `end` rewrites, by runs that stop there."""
        for k in range(self._done + 1, end):
            if self._is_end(k):
                self._add(k, self._limited_run(k))

    def _is_end(self, count: int) -> bool:
        """Return True if a step ends after `count` rewrites."""
        return count % self.stride == 0 or count == len(self.run.rewrites)

    def _add(self, count: int, state: AnyIR) -> None:
        """Add the step to `state`, the IR after `count` rewrites; to that after none, if the pass changes something in any case."""
        new = self._printer.lines(state)
        delta, self._text = line_delta(self._text, new), new
        if count:
            self.steps.append(joint_rewrite(self.run.rewrites[self._done : count], self.run.made + count, delta))
        elif delta:
            self.steps.append(Rewrite(0, "what the pass does in any case", "", [], delta))
        self._done = count

    def _limited_run(self, limit: int) -> AnyIR:
        return self._rerun(rewrite_limit=limit)

    def _rerun(self, **changes: Any) -> AnyIR:
        """Run the pass again, with a context that has `changes` and remembers nothing of the first run but costs."""
        before = self.run.before
        name = before.name if isinstance(before, Kernel) else ""
        forgotten = {"refuses_required": True, "rewrites": [], "remarks": Remarks(), "alternatives": []}
        return run_on_nested_graphs(
            self.run.pass_, before, replace(self.context, kernel=name, **{**forgotten, **changes})
        )


def rewrites_of(run: PassRun, context: Context) -> tuple[list[Rewrite], str]:
    """Return the rewrites of a run of a pass, each as a step, and what is left out and why ("": nothing).

    A step makes several rewrites if they are many and the IR is large.  `context` is that of the recorded compilation.
    """
    count = len(run.rewrites)
    stride = -(-count // max(1, MAX_WORK // max(1, ir_size(run.before))))
    steps = RewriteSteps(run, context, stride)
    try:
        if count:
            steps.make()
    except TilewrightError as error:
        return steps.steps, f"not shown: the other rewrites, since the pass fails where it stops early: {error}"
    return steps.steps, f"each step makes up to {stride} rewrites of this large graph" if stride > 1 else ""


def has_loops(ir: AnyIR) -> bool:
    """Return True for a graph with the bodies of loops in it, which passes visit one after the other."""
    return isinstance(ir, Graph) and any(isinstance(n.structure, Recurrence) for n in ir.nodes)


def joint_rewrite(made: Sequence[Remark], number: int, delta: list[Hunk]) -> Rewrite:
    """Return rewrites, the last of them with this number, as one step that changes the text by `delta`."""
    subjects = [subject_of(r) for r in made]
    more = f" and {len(made) - MAX_SUBJECTS} more" if len(made) > MAX_SUBJECTS else ""
    origins = sorted({r.loc.number for r in made if isinstance(r.loc, OriginLoc)})
    messages = "; ".join(dict.fromkeys(r.message for r in made))
    return Rewrite(number, messages, ", ".join(filter(None, subjects[:MAX_SUBJECTS])) + more, origins, delta)
