"""Pass instruments: timing, IR printing, verification, and comparison by the interpreter."""

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
from compiler.ir.interpret.tile import pack_elements, poisoned_array, run_kernel, run_program
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
from compiler.passes.manager import PassInstrument

if TYPE_CHECKING:
    from compiler.options import Options

AnyIR: TypeAlias = Graph | Kernel | Program
AnyPass: TypeAlias = Pass[Any]


def ir_size(ir: AnyIR) -> int:
    """Return the number of nodes of a graph, statements of a kernel, or steps of a program."""
    if isinstance(ir, Program):
        return sum(1 for _ in walk_steps(ir.steps))
    return len(ir.nodes) if isinstance(ir, Graph) else sum(1 for _ in walk(ir.body))


def ir_text(ir: AnyIR) -> str:
    """Print the IR."""
    if isinstance(ir, Program):
        return print_program(ir)
    return print_graph(ir) if isinstance(ir, Graph) else print_kernel(ir)


@dataclass
class PassTiming(PassInstrument):
    """Record (pass, seconds, size before, size after) for every pass run."""

    rows: list[tuple[str, float, int, int]] = field(default_factory=list)

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        self.rows.append((pass_.name, seconds, ir_size(old), ir_size(new)))

    def __str__(self) -> str:
        lines = [f"{'ms':>9}  {'size':>6} -> {'size':<6}  pass"]
        lines += [f"{seconds * 1e3:9.2f}  {old:6} -> {new:<6}  {name}" for name, seconds, old, new in self.rows]
        return "\n".join(lines)


@dataclass
class PrintIR(PassInstrument):
    """Print the IR before and after the named passes ("all" for every one); `on_change` prints it after each change."""

    before_passes: Sequence[str] = ()
    after_passes: Sequence[str] = ()
    on_change: bool = False
    file: TextIO | None = None

    def before_pass(self, pass_: AnyPass, ir: AnyIR, context: Context) -> None:
        if _is_selected(pass_, self.before_passes):
            self._print(f"before {pass_.name}", ir)

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        changed = self.on_change and new is not old and ir_text(new) != ir_text(old)
        if changed or _is_selected(pass_, self.after_passes):
            self._print(f"after {pass_.name}", new)

    def _print(self, title: str, ir: AnyIR) -> None:
        print(f"// {title} (@{ir.name})\n{ir_text(ir)}", file=self.file or sys.stderr)


def _is_selected(pass_: AnyPass, names: Sequence[str]) -> bool:
    return "all" in names or pass_.name in names


def instruments_for(options: Options) -> list[PassInstrument]:
    """Return the instruments that the user's options ask for."""
    instruments: list[PassInstrument] = []
    if options.verify:
        instruments.append(Verify())
    if options.check:
        instruments.append(SemanticCheck())
    if options.print_before or options.print_after or options.print_after_change:
        before, after = (tuple(filter(None, o.split(","))) for o in (options.print_before, options.print_after))
        instruments.append(PrintIR(before, after, options.print_after_change))
    return instruments


def verify(ir: AnyIR) -> None:
    """Verify a graph, program or kernel; VerifyError if it breaks a rule of its IR."""
    if isinstance(ir, Graph):
        verify_graph(ir)
    elif isinstance(ir, Program):
        verify_program(ir)
    else:
        verify_kernel(ir)


class Verify(PassInstrument):
    """Verify the result of every pass; PassError names the pass."""

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if new is old:
            return
        try:
            verify(new)
        except VerifyError as error:
            raise PassError(f"pass {pass_.name} produced invalid IR for @{old.name}: {error}") from error


@dataclass
class SemanticCheck(PassInstrument):
    """Interpret the IR before and after every pass on random inputs; PassError names a pass that changes a result.

    Graphs are interpreted in float64, kernels in their own dtypes, dynamic IR at several sizes.  IR that interprets more
    than `max_steps` statements is skipped with a note.
    """

    seed: int = 0
    max_steps: int = 200_000
    skipped: list[str] = field(default_factory=list)
    _last: tuple[AnyIR, list[tuple[SizeValues, list[Array]]]] | None = None

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if new is old:
            return
        samples = list(sample_sizes(old, new))
        if max(interpreted_statements(ir, samples[0]) for ir in (old, new)) > self.max_steps:
            self.skipped.append(pass_.name)
            context.note(pass_, f"semantic check skipped: @{old.name} has more than {self.max_steps} steps", old.name)
            return
        known = self._last[1] if self._last and self._last[0] is old else []
        outputs: list[tuple[SizeValues, list[Array]]] = []
        for sizes in samples:
            try:
                expected = next((a for s, a in known if s == sizes), None) or interpreted_outputs(old, self.seed, sizes)
            except (IndexError, RuntimeError):  # a static index is out of range at this size
                continue
            like = None if isinstance(old, Graph) else old
            actual = interpreted_outputs(new, self.seed, sizes, like)
            outputs.append((sizes, actual))
            at = f" where {', '.join(f'{n} = {v}' for n, v in sizes.items())}" if sizes else ""
            for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
                if problem := describe_difference(want, got, tolerance(old)):
                    result = f"the result of @{old.name}: output {number}: {problem}{at}"
                    raise PassError(f"pass {pass_.name} changed {result}")
        self._last = (new, outputs)


def interpreted_outputs(
    ir: AnyIR, seed: int = 0, sizes: SizeValues | None = None, like: Kernel | Program | None = None
) -> list[Array]:
    """Interpret IR on random inputs; return a graph's outputs in float64, or a kernel's out and inout buffers.

    `sizes` are values of dynamic sizes; symbols of a graph without one get small values.  Inputs of Tile IR are as for `like`:
    before a pass that packs elements.
    """
    sizes = sizes or {}
    if isinstance(ir, Graph):
        fixed = ir.specialize({**small_symbol_values(ir), **sizes}) if ir.symbols else ir
        types = [n.type for n in fixed.inputs]
        results = run_with_valid_range(
            lambda low, high: interpret(fixed, random_inputs(types, seed, low, high), dtype=torch.float64)
        )
        return [as_array(r) for r in results]
    inputs = input_types(like or ir, sizes)
    return run_with_valid_range(lambda low, high: interpret_on(ir, random_inputs(inputs, seed, low, high), sizes))


def input_types(ir: Kernel | Program, sizes: SizeValues) -> list[TensorType]:
    """Return the static types of the arrays that a kernel or program is run on."""
    types = [p.type for p in ir.params] if isinstance(ir, Kernel) else [ir.buffers[n] for n in ir.inputs]
    return [t.specialize(sizes) for t in types]


TOLERANCES: Mapping[str, float] = {"f64": 1e-9, "f32": 3e-5}
"""Accepted differences relative to the largest value, chosen empirically; reduced floats may differ by ten ulps."""


def tolerance(ir: AnyIR) -> float:
    """Return the tolerance of the least precise float type in the IR."""
    if isinstance(ir, Program):
        dtypes = {t.dtype for t in ir.buffers.values()}
    elif isinstance(ir, Kernel):
        dtypes = {p.type.dtype for p in ir.params}
    else:
        dtypes = {n.dtype for n in ir.nodes if not isinstance(n.result_type, tuple)}
    roundings = (TOLERANCES.get(d.name, 10 * 2.0**-d.float_format.mantissa_bits) for d in dtypes if d.is_float)
    return max(roundings, default=TOLERANCES["f64"])


def interpret_on(ir: Kernel | Program, arrays: Sequence[Array], sizes: SizeValues | None = None) -> list[Array]:
    """Return the outputs of a program, or a kernel's out and inout buffers after a run on copies of `arrays`.

    `arrays` has one entry per input or parameter, in single elements or packed; `sizes` gives dynamic sizes that no shape
    determines.
    """
    if isinstance(ir, Program):
        return run_program(ir, arrays)
    buffers = {}
    for p, x in zip(ir.params, arrays, strict=True):
        type_ = p.type.specialize(sizes or {})
        given = x.copy() if x.dtype == type_.dtype.numpy else pack_elements(x, type_)
        buffers[p.name] = poisoned_array(p.type.with_shape(x.shape)) if p.role == "out" else given
    run_kernel(ir, buffers, sizes)
    return [buffers[p.name] for p in ir.params if p.role in ("out", "inout")]


def run_with_valid_range(run: Callable[[int, int], list[Any]]) -> list[Any]:
    """Return `run(low, high)` for the first range of random integers for which no index or divisor is invalid."""
    for low, high in ((0, 8), (0, 2), (1, 8)):
        try:
            return run(low, high)
        except (IndexError, RuntimeError):  # PyTorch raises either for an index out of range
            continue
    return run(0, 1)


def describe_difference(expected: Array, actual: Array, relative: float = 0.0) -> str:
    """Describe how `actual` differs from `expected`, or return ""; tolerance 0 compares bits, with all NaNs equal."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{actual.dtype}{list(actual.shape)} instead of {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        same = expected == actual
    elif relative == 0:
        same_bits = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
        same = same_bits | (np.isnan(expected) & np.isnan(actual))
    else:
        largest = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1.0))
        same = np.isclose(actual, expected, rtol=relative, atol=relative * largest, equal_nan=True)
    if np.all(same):
        return ""
    at = tuple(int(i) for i in np.argwhere(~same)[0])
    count = f"{int(np.sum(~same))} of {same.size} elements differ"
    return f"{count}; element {list(at)} is {actual[at]} instead of {expected[at]}"
