"""Comparison of IR before and after every pass, on random inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from compiler.errors import PassError, TilewrightError, VerifyError
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs, small_symbol_values
from compiler.ir.interpret.size_sampling import SizeValues, interpreted_statements, sample_sizes
from compiler.ir.interpret.tile import KernelRunner, pack_elements, poisoned_array, run_kernel, run_program
from compiler.ir.text.ir_text import AnyIR
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.ir.torch_types import as_array
from compiler.ir.types import TensorType
from compiler.passes.base import Context
from compiler.passes.instrument import AnyPass
from compiler.passes.manager import PassInstrument

MAX_INTERPRETED_STATEMENTS = 5_000
"""Statements from which on native code, which starts slower, takes less time than the interpreter; chosen empirically."""

MAX_STATEMENTS = 200_000
"""Statements that the interpreter runs where there is no native code; chosen empirically, it takes some seconds."""


class CheckWarning(UserWarning):
    """A pass was not checked."""


class SkippedCheck(NamedTuple):
    """A check that was not made: its pass, the graph, kernel or program, and the reason."""

    pass_name: str
    ir_name: str
    reason: str

    def __str__(self) -> str:
        return f"pass {self.pass_name} is not checked on @{self.ir_name}: {self.reason}"


class _NoCheck(Exception):
    """Raised with the reason why IR cannot be run."""


@dataclass
class SemanticCheck(PassInstrument):
    """Run the IR before and after every pass on random inputs; PassError names a pass that changes a result.

    Graphs are interpreted in float64, kernels in their own dtypes, dynamic IR at several sizes.  `run_native` runs kernels as
    native code where that takes less time than the interpreter.  A check that cannot be made is a warning, a remark, and an
    entry of `skipped`; with `strict` it is a PassError.
    """

    seed: int = 0
    max_statements: int = MAX_STATEMENTS
    run_native: KernelRunner | None = None
    strict: bool = False
    skipped: list[SkippedCheck] = field(default_factory=list)
    _last: tuple[AnyIR, list[tuple[SizeValues, list[Array]]]] | None = None

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if new is old:
            return
        try:
            outputs = list(self._compared_outputs(pass_, old, new))
        except _NoCheck as reason:
            self._skip(SkippedCheck(pass_.name, old.name, str(reason)), pass_, context)
        else:
            self._last = (new, outputs)

    def _compared_outputs(self, pass_: AnyPass, old: AnyIR, new: AnyIR) -> Iterator[tuple[SizeValues, list[Array]]]:
        """Yield the outputs of `new` at some sizes; PassError if they are not those of `old`, _NoCheck if nothing can be run."""
        samples, tried = list(sample_sizes(old, new)), 0
        run = self._runner(samples[0], old, new)
        known = self._last[1] if self._last and self._last[0] is old else []
        for sizes in samples:
            try:
                expected = next((a for s, a in known if s == sizes), None) or outputs_of(old, self.seed, sizes, run=run)
            except (IndexError, RuntimeError):  # a static index is out of range at this size
                continue
            except VerifyError as error:
                raise PassError(f"the IR is invalid before pass {pass_.name}: {error}") from error
            try:
                actual = outputs_of(new, self.seed, sizes, like=None if isinstance(old, Graph) else old, run=run)
            except (VerifyError, IndexError, RuntimeError) as error:
                raise PassError(f"pass {pass_.name} produced IR for @{old.name} that cannot be run: {error}") from error
            tried += 1
            at = f" where {', '.join(f'{n} = {v}' for n, v in sizes.items())}" if sizes else ""
            for number, (want, got) in enumerate(zip(expected, actual, strict=True)):
                if problem := describe_difference(want, got, tolerance(old)):
                    result = f"the result of @{old.name}: output {number}: {problem}{at}"
                    raise PassError(f"pass {pass_.name} changed {result}")
            yield sizes, actual
        if not tried:
            raise _NoCheck("an index is out of range at every size that was tried")

    def _runner(self, sizes: SizeValues, *irs: AnyIR) -> KernelRunner:
        """Return what runs kernels: native code if there are many statements to interpret; _NoCheck if there is none."""
        statements = max(interpreted_statements(ir, sizes) for ir in irs)
        if statements <= (self.max_statements if self.run_native is None else MAX_INTERPRETED_STATEMENTS):
            return run_kernel
        if self.run_native is None:
            raise _NoCheck(f"the interpreter would run more than {self.max_statements} statements")
        return _with_refusals(self.run_native)

    def _skip(self, skipped: SkippedCheck, pass_: AnyPass, context: Context) -> None:
        self.skipped.append(skipped)
        if self.strict:
            raise PassError(f"{skipped}; check=True lets that pass with a warning")
        context.note(pass_, f"check skipped: {skipped.reason}", skipped.ir_name)
        warnings.warn(str(skipped), CheckWarning, stacklevel=2)


def _with_refusals(run: KernelRunner) -> KernelRunner:
    """Return `run` with _NoCheck in place of the errors of code generation."""

    def run_or_refuse(kernel: Kernel, buffers: Mapping[str, Array], sizes: SizeValues | None = None) -> None:
        try:
            run(kernel, buffers, sizes)
        except VerifyError:
            raise
        except (TilewrightError, NotImplementedError) as error:
            raise _NoCheck(f"@{kernel.name} has no native code: {error}") from error

    return run_or_refuse


def outputs_of(
    ir: AnyIR,
    seed: int = 0,
    sizes: SizeValues | None = None,
    like: Kernel | Program | None = None,
    run: KernelRunner = run_kernel,
) -> list[Array]:
    """Run IR on random inputs; return a graph's outputs in float64, or a kernel's out and inout buffers.

    `sizes` are values of dynamic sizes; symbols of a graph without one get small values.  Inputs of Tile IR are as for `like`:
    before a pass that packs elements.  `run` runs kernels.
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
    return run_with_valid_range(lambda low, high: run_on(ir, random_inputs(inputs, seed, low, high), sizes, run))


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


def run_on(
    ir: Kernel | Program, arrays: Sequence[Array], sizes: SizeValues | None = None, run: KernelRunner = run_kernel
) -> list[Array]:
    """Return the outputs of a program, or a kernel's out and inout buffers after a run on copies of `arrays`.

    `arrays` has one entry per input or parameter, in single elements or packed; `sizes` gives dynamic sizes that no shape
    determines; `run` runs kernels.
    """
    if isinstance(ir, Program):
        return run_program(ir, arrays, run)
    buffers = {}
    for p, x in zip(ir.params, arrays, strict=True):
        type_ = p.type.specialize(sizes or {})
        given = x.copy() if x.dtype == type_.dtype.numpy else pack_elements(x, type_)
        buffers[p.name] = poisoned_array(p.type.with_shape(x.shape)) if p.role == "out" else given
    run(ir, buffers, sizes)
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
