"""What can watch a pipeline: a clock, a printer, the verifier, and the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import numpy as np
import torch

from compiler.errors import PassError, VerifyError
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import Array, random_inputs, small_symbol_values
from compiler.ir.interpret.size_sampling import SizeValues, interpreted_statements, sample_sizes
from compiler.ir.interpret.tile import poisoned_array, run_kernel, run_program
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_printer import print_kernel, print_program
from compiler.ir.tile.kernel import Kernel, walk
from compiler.ir.tile.program import Program, walk_steps
from compiler.ir.torch_types import as_array
from compiler.ir.types import TensorType
from compiler.ir.verify.graph import verify_graph
from compiler.ir.verify.kernel import verify_kernel
from compiler.ir.verify.program import verify_program
from compiler.passes.base import Context, Pass

if TYPE_CHECKING:
    from compiler.options import Options

AnyIR: TypeAlias = Graph | Kernel | Program
AnyPass: TypeAlias = Pass[Any]


class PassInstrument:
    """An instrument that does nothing; derive from it."""

    def before_pass(self, pass_: AnyPass, ir: AnyIR, context: Context) -> None:
        """Called with what `pass_` is given."""

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        """Called with what `pass_` was given and what it made of it."""

    def kernel_finished(self, kernel: Kernel, program: Program, context: Context) -> None:
        """Called with each kernel of `program` as no pass will change it any more, before the passes run on the next."""


def ir_size(ir: AnyIR) -> int:
    """Nodes of a graph, statements of a kernel or steps of a program."""
    if isinstance(ir, Program):
        return sum(1 for _ in walk_steps(ir.steps))
    return len(ir.nodes) if isinstance(ir, Graph) else sum(1 for _ in walk(ir.body))


def ir_text(ir: AnyIR) -> str:
    """The IR as it is printed."""
    if isinstance(ir, Program):
        return print_program(ir)
    return print_graph(ir) if isinstance(ir, Graph) else print_kernel(ir)


@dataclass
class PassTiming(PassInstrument):
    """Seconds and sizes of every pass run."""

    rows: list[tuple[str, float, int, int]] = field(default_factory=list)

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        self.rows.append((pass_.name, seconds, ir_size(old), ir_size(new)))

    def __str__(self) -> str:
        lines = [f"{'ms':>9}  {'size':>6} -> {'size':<6}  pass"]
        lines += [f"{seconds * 1e3:9.2f}  {old:6} -> {new:<6}  {name}" for name, seconds, old, new in self.rows]
        return "\n".join(lines)


@dataclass
class PrintIR(PassInstrument):
    """Prints the IR before and after the passes named ("all" for every one); `changes` prints it whenever it changed."""

    before_passes: Sequence[str] = ()
    after_passes: Sequence[str] = ()
    on_change: bool = False
    file: TextIO | None = None

    def before_pass(self, pass_: AnyPass, ir: AnyIR, context: Context) -> None:
        if _is_selected(pass_, self.before_passes):
            self._print(f"before {pass_.name}", ir)

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if _is_selected(pass_, self.after_passes) or (
            self.on_change and new is not old and ir_text(new) != ir_text(old)
        ):
            self._print(f"after {pass_.name}", new)

    def _print(self, title: str, ir: AnyIR) -> None:
        print(f"// {title} (@{ir.name})\n{ir_text(ir)}", file=self.file or sys.stderr)


def _is_selected(pass_: AnyPass, names: Sequence[str]) -> bool:
    return "all" in names or pass_.name in names


def instruments_for(options: Options) -> list[PassInstrument]:
    """What the user's options ask to watch."""
    watches: list[PassInstrument] = []
    if options.verify:
        watches.append(Verify())
    if options.check:
        watches.append(SemanticCheck())
    if options.print_before or options.print_after or options.print_after_change:
        before, after = (tuple(filter(None, o.split(","))) for o in (options.print_before, options.print_after))
        watches.append(PrintIR(before, after, options.print_after_change))
    return watches


def verify(ir: AnyIR) -> None:
    """VerifyError where a graph, program or kernel breaks a rule of its IR."""
    if isinstance(ir, Graph):
        verify_graph(ir)
    elif isinstance(ir, Program):
        verify_program(ir)
    else:
        verify_kernel(ir)


class Verify(PassInstrument):
    """Verifies what every pass makes."""

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if new is old:
            return
        try:
            verify(new)
        except VerifyError as error:
            raise PassError(f"pass {pass_.name} made invalid IR of @{old.name}: {error}") from error


@dataclass
class SemanticCheck(PassInstrument):
    """Interprets the IR before and after every pass on random inputs and names the first pass that changes an answer.

    Graphs are interpreted in float64, kernels as they are, open ones at several sizes.  A kernel of more than `max_steps` steps is
    left alone, with a note.
    """

    seed: int = 0
    max_steps: int = 200_000
    skipped: list[str] = field(default_factory=list)
    _last: tuple[AnyIR, list[tuple[SizeValues, list[Array]]]] | None = None

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if new is old:
            return
        tried = list(sample_sizes(old, new))
        if max(interpreted_statements(old, tried[0]), interpreted_statements(new, tried[0])) > self.max_steps:
            self.skipped.append(pass_.name)
            context.note(pass_, f"semantic check skipped: @{old.name} has more than {self.max_steps} steps", old.name)
            return
        known = self._last[1] if self._last and self._last[0] is old else []
        found: list[tuple[SizeValues, list[Array]]] = []
        for sizes in tried:
            try:
                expected = next((a for s, a in known if s == sizes), None) or interpreted_outputs(old, self.seed, sizes)
            except (IndexError, RuntimeError):  # what is a position in a larger array is none in one of this size
                continue
            actual = interpreted_outputs(new, self.seed, sizes)
            found.append((sizes, actual))
            at = f" where {', '.join(f'{n} = {v}' for n, v in sizes.items())}" if sizes else ""
            for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
                if problem := describe_difference(want, got, tolerance(old)):
                    raise PassError(
                        f"pass {pass_.name} changed the answer of @{old.name}: output {number}: {problem}{at}"
                    )
        self._last = (new, found)


def interpreted_outputs(ir: AnyIR, seed: int = 0, sizes: SizeValues | None = None) -> list[Array]:
    """What the interpreter makes of random inputs: a graph's outputs in float64, a kernel's out and inout buffers.

    `sizes` are those that the IR leaves open; symbols of a graph that are not among them are small.
    """
    sizes = sizes or {}
    if isinstance(ir, Graph):
        fixed = ir.specialize({**small_symbol_values(ir), **sizes}) if ir.symbols else ir
        types = [n.type for n in fixed.inputs]
        results = run_with_valid_range(
            lambda low, high: interpret(fixed, random_inputs(types, seed, low, high), dtype=torch.float64)
        )
        return [as_array(r) for r in results]
    given = input_types(ir, sizes)
    return run_with_valid_range(lambda low, high: interpret_on(ir, random_inputs(given, seed, low, high), sizes))


def input_types(ir: Kernel | Program, sizes: SizeValues) -> list[TensorType]:
    """The types of the arrays that a kernel or program is run on, with its open sizes fixed."""
    types = [p.type for p in ir.params] if isinstance(ir, Kernel) else [ir.buffers[n] for n in ir.inputs]
    return [t.specialize(sizes) for t in types]


TOLERANCES: Mapping[str, float] = {"f64": 1e-9, "f32": 3e-5, "f16": 1e-2, "bf16": 5e-2}


def tolerance(ir: AnyIR) -> float:
    """How far answers may be apart, relative to the largest: rounding in the coarsest float type of the IR, several times."""
    if isinstance(ir, Program):
        dtypes = {t.dtype for t in ir.buffers.values()}
    elif isinstance(ir, Kernel):
        dtypes = {p.type.dtype for p in ir.params}
    else:
        dtypes = {n.dtype for n in ir.nodes if not isinstance(n.result_type, tuple)}
    return max((TOLERANCES[d.name] for d in dtypes if d.is_float), default=TOLERANCES["f64"])


def interpret_on(ir: Kernel | Program, arrays: Sequence[Array], sizes: SizeValues | None = None) -> list[Array]:
    """The outputs of a program, or a kernel's out and inout buffers after a run on copies of `given`, one array per parameter.

    `sizes` are those that the arrays do not tell.
    """
    if isinstance(ir, Program):
        return run_program(ir, arrays)
    buffers = {
        p.name: poisoned_array(p.type.with_shape(x.shape)) if p.role == "out" else x.copy()
        for p, x in zip(ir.params, arrays, strict=True)
    }
    run_kernel(ir, buffers, sizes)
    return [buffers[p.name] for p in ir.params if p.role in ("out", "inout")]


def run_with_valid_range(run: Callable[[int, int], list[Any]]) -> list[Any]:
    """`run(low, high)` with bounds on random integers that are valid wherever they are indices or divisors."""
    for low, high in ((0, 8), (0, 2), (1, 8)):
        try:
            return run(low, high)
        except (IndexError, RuntimeError):  # PyTorch raises either for an index out of range
            continue
    return run(0, 1)


def describe_difference(expected: Array, actual: Array, relative: float = 0.0) -> str:
    """What is wrong with `got`, or nothing; 0 asks for the same bits (but any NaN equals another)."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        same = expected == actual
    elif relative == 0:
        same = (expected == actual) & (np.signbit(expected) == np.signbit(actual)) | (
            np.isnan(expected) & np.isnan(actual)
        )
    else:
        largest = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0))
        same = np.isclose(actual, expected, rtol=relative, atol=relative * largest, equal_nan=True)
    if np.all(same):
        return ""
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{int(np.sum(~same))} of {same.size} elements differ; element {list(place)} is {actual[place]} instead of {expected[place]}"
