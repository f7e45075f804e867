"""Rounding oracle: float64 results of a graph and bounds of the rounding errors that a compiled program may make.

A *perturbed run* evaluates the decomposed graph in float64, with exponentials that may be flushed to zero, and rounds every
value to its dtype after adding a random error of the size that the op's arithmetic may make, as in Monte Carlo arithmetic
(Parker, "Monte Carlo Arithmetic", 1997).  Where perturbed runs agree, a compiled program must agree with them; their spread
bounds its error.  A value with several uses may be recomputed, so each use may observe the value of the previous run.  Thus the
floor of a number near an integer, a sum that cancels, and an index chosen among equals are uncertain exactly there, and
everything else must be right to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from compiler.analysis.contraction_nodes import is_contraction_node
from compiler.ir.float_format import Array
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import (
    Elementwise,
    Gather,
    IndexMap,
    Recurrence,
    Reduction,
)
from compiler.ir.interpret.graph import evaluate_node
from compiler.ir.interpret.structure import evaluate_structure
from compiler.ir.ops.recurrence import run_steps
from compiler.ir.torch_types import TORCH_DTYPES, as_array, as_tensor
from compiler.ir.types import DType, bf16, f32
from compiler.passes.manager import run_pipeline
from compiler.testing.fuzz.error_bounds import error_bounds, has_known_codes, is_flushing, resolution

Value: TypeAlias = Any
"""A tensor, or a tuple of tensors."""

ERROR_SLACK = 4.0
"""Allowed error as a multiple of the spread of perturbed runs; chosen empirically."""

ROUNDING_UNITS = 4
"""Units in the last place that any result may be off; chosen empirically."""

RECOMPUTE_PROBABILITY = 0.25
"""Probability that a use observes the value of the previous run; chosen empirically."""

FLUSH_PROBABILITY = 0.5
"""Probability that a product of bf16 treats subnormal numbers as zeros, as `vdpbf16ps` does."""


@dataclass(frozen=True)
class PerturbedRun:
    """Options of a perturbed run.

    Errors have `error_scale` times the usual size.  With `keeps_overflow`, a value too large for its dtype is not replaced by
    a random one.  `previous_values` are those of the previous run.
    """

    rng: np.random.Generator
    error_scale: float = 1.0
    keeps_overflow: bool = False
    previous_values: Mapping[Node, Value] = field(default_factory=dict)

    def observed_value(self, node: Node, value: Value) -> Value:
        """Return `value`, or at random the value of `node` in the previous run."""
        recomputed = node in self.previous_values and self.rng.random() < RECOMPUTE_PROBABILITY
        return self.previous_values[node] if recomputed else value


@dataclass(frozen=True)
class Expectation:
    """Expected output: `value` within `error`, where infinity allows any value; or a class of `float_classes`."""

    value: Array
    error: Array
    float_classes: tuple[Array, ...]

    @classmethod
    def unconstrained(cls, value: Array) -> Expectation:
        return cls(value, np.full(value.shape, np.inf), ())

    def describe_mismatch(self, got: Array) -> str:
        """Describe how `got` differs from the expectation, or return ""."""
        if got.shape != self.value.shape:
            return f"the result has shape {list(got.shape)} instead of {list(self.value.shape)}"
        with np.errstate(all="ignore"):
            if got.dtype.kind != "f":
                bad = (got != self.value) & (self.error == 0)
            else:
                near = np.abs(got.astype(np.float64) - self.value) <= self.error
                same = near | ((got == self.value) & ~np.isfinite(self.value))
                possible = np.any([float_class(got) == k for k in self.float_classes], axis=0)
                special = possible & ~(np.isfinite(got) & np.isfinite(self.value))
                bad = ~(same | special | np.isinf(self.error))
        if not bad.any():
            return ""
        index = tuple(int(d) for d in np.argwhere(bad)[0])
        first = f"element {list(index)} is {got[index]!r} instead of {self.value[index]!r}"
        bound = f" within {self.error[index]:.3g}" if got.dtype.kind == "f" else ""
        return f"{int(bad.sum())} of {bad.size} elements are wrong; {first}{bound}"

    @property
    def checked_elements(self) -> int:
        """Number of elements with a finite error bound."""
        return int(np.isfinite(self.error).sum()) if self.value.dtype.kind == "f" else int((self.error == 0).sum())


def float_class(array: Array) -> Array:
    """Classify elements: 0 finite, 1 infinity, -1 negative infinity, 2 NaN."""
    if array.dtype.kind != "f":
        return np.zeros(array.shape)
    return np.where(np.isnan(array), 2, np.where(np.isinf(array), np.sign(array), 0))


@dataclass(frozen=True)
class Reference:
    """Runs of a static graph without perturbation: values in float64 as they are (`truth`), and `rounded` to their dtypes."""

    graph: Graph
    inputs: Sequence[Array]
    truth: Mapping[Node, Value]
    rounded: Mapping[Node, Value]

    @classmethod
    def of(cls, graph: Graph, inputs: Sequence[Array]) -> Reference:
        """Run `graph` on `inputs`.  Raises IndexError if an index is out of range."""
        return cls(graph, inputs, run_perturbed(graph, inputs, None, rounded=False), run_perturbed(graph, inputs, None))

    @property
    def num_elements(self) -> int:
        """Number of elements of all outputs."""
        return sum(self.truth[n].numel() for n in self.graph.outputs)

    def meets_every_expectation(self, got: Sequence[Array]) -> bool:
        """Return True if outputs are so near that no perturbed run can make an expectation that they do not meet."""
        return all(
            not _least_expectation(n, as_array(self.truth[n]), as_array(self.rounded[n])).describe_mismatch(g)
            for n, g in zip(self.graph.outputs, got, strict=False)
        )

    def expectations(self, seed: int = 0, runs: int = 5) -> list[Expectation]:
        """Return the expectation of each output, from `runs` perturbed runs.

        Outputs are unconstrained if an index is out of range in one of the runs.
        """
        graph, inputs = self.graph, self.inputs
        decomposed = run_pipeline(graph, "decompose,flush-exponentials")
        noise = _float64_noise_runs(graph, inputs, seed, 1 + runs // 8)
        usual: list[Mapping[Node, Value]] = [run_perturbed(decomposed, inputs, None)]
        scaled: list[Mapping[Node, Value]] = []
        for k in range(runs):
            # nonlinear functions, as a sine at its maximum, do not scale the error by the same factor
            scale = ERROR_SLACK if k % 3 == 2 else 1.0
            perturbation = PerturbedRun(np.random.default_rng((seed, k)), scale, k % 4 == 1, usual[-1])
            try:
                values = run_perturbed(decomposed, inputs, perturbation)
            except IndexError:
                return [Expectation.unconstrained(as_array(self.truth[n])) for n in graph.outputs]
            (usual if scale == 1.0 else scaled).append(values)
        return [
            _combine_runs(
                n, self.truth[n], self.rounded[n], [r[n] for r in noise], [r[o] for r in usual], [r[o] for r in scaled]
            )
            for n, o in zip(graph.outputs, decomposed.outputs, strict=True)
        ]


def expectations(graph: Graph, inputs: Sequence[Array], seed: int = 0, runs: int = 5) -> list[Expectation]:
    """Return the expectation of each output of a static graph for `inputs`.  Raises IndexError if an index is out of range."""
    return Reference.of(graph, inputs).expectations(seed, runs)


def _least_expectation(node: Node, true: Array, own: Array) -> Expectation:
    """Return what any expectation includes: a few units in the last place of `true`, or the infinity or NaN that it is.

    Where the unperturbed value `own` is another number, no number is included.
    """
    if not node.dtype.is_float:
        return Expectation(own, np.zeros(own.shape), ())
    with np.errstate(all="ignore"):
        error = ROUNDING_UNITS * resolution(node.dtype)[0] * np.abs(true)
        error = np.where(np.abs(own - true) <= error, error, np.nan)
    return Expectation(true, error, (float_class(true),))


def _combine_runs(
    node: Node,
    truth: torch.Tensor,
    unperturbed: torch.Tensor,
    noise_runs: Sequence[torch.Tensor],
    usual_runs: Sequence[torch.Tensor],
    scaled_runs: Sequence[torch.Tensor],
) -> Expectation:
    """Combine the values of `node` in several runs into an expectation.

    `truth` is not rounded, `unperturbed` is.  `noise_runs` are `truth` with float64's own errors, `usual_runs` have errors of the
    usual size, the first one none, and `scaled_runs` have ERROR_SLACK times larger errors.  Where the first one is NaN and others
    skip what made it so, their number is expected as well.
    """
    observed = np.stack([as_array(r) for r in (*usual_runs, *scaled_runs)])
    first = observed[0]
    if not node.dtype.is_float:
        certain = np.all(observed == first, axis=0) & (as_array(unperturbed) == first)
        return Expectation(first, np.where(certain, 0.0, np.inf), ())
    true, own = as_array(truth), as_array(unperturbed)
    classes = (float_class(true), float_class(own), *map(float_class, observed))
    first = _first_number(observed)
    skips = np.isnan(observed[0]) & ~np.isnan(first)
    true, own = (np.where(skips & np.isnan(x), first, x) for x in (true, own))
    with np.errstate(all="ignore"):
        noise = [np.nan_to_num(16 * np.abs(as_array(r) - true)) for r in noise_runs]
        float64_error = np.max(noise, axis=0, initial=1e-13 * np.max(np.abs(true[np.isfinite(true)]), initial=1.0))
        deviation = np.where(skips & np.isnan(observed), 0.0, np.abs(observed - first))
        deviation[len(usual_runs) :] /= ERROR_SLACK
        spread = np.max(deviation, axis=0, initial=0.0)
        decomposition = np.abs(own - first)  # the decomposed graph rounds elsewhere
        eps, tiny = resolution(node.dtype)
        near = decomposition <= 64 * (spread + eps * np.abs(first))
        error = (
            ERROR_SLACK * (spread + np.where(near, decomposition, 0))
            + ROUNDING_UNITS * eps * np.abs(true)
            + 8 * tiny * eps
        )
        rounding = np.abs(true - first)  # values near the first run are as good as values near the truth
        error = error + np.where(rounding <= np.maximum(error, float64_error), rounding, 0)
    agree = np.all([(c == float_class(first)) | (skips & (c == 2)) for c in classes[2:]], axis=0)
    finite = agree & np.isfinite(first)
    never_finite = np.all([c != 0 for c in classes], axis=0)  # infinite or NaN, as `classes` say
    with np.errstate(all="ignore"):
        depends_on_rounding = np.isfinite(own) & (np.abs(true - own) > error)  # `truth` is another result
    value = np.where(finite & np.isfinite(true), np.where(depends_on_rounding, own, true), first)
    error = np.where(finite, np.where(np.isnan(error), np.inf, error), np.where(agree | never_finite, 0.0, np.inf))
    return Expectation(value, error, classes)


def _first_number(observed: Array) -> Array:
    """Return the first run, or where it is NaN the first one that is not, if those are a quarter of all at least."""
    numbers = ~np.isnan(observed)
    first = np.take_along_axis(observed, numbers.argmax(axis=0)[None], 0)[0]
    number: Array = np.where(4 * numbers.sum(axis=0) >= len(observed), first, observed[0])
    return number


def run_perturbed(
    graph: Graph, inputs: Sequence[Array], perturbation: PerturbedRun | None, rounded: bool = True
) -> dict[Node, Value]:
    """Evaluate every node in float64 (integers as they are), rounded to its dtype, with the errors of `perturbation` if any."""
    values = [to_float64(as_tensor(x, n.dtype)) for n, x in zip(graph.inputs, inputs, strict=True)]
    return _run_graph(graph, values, perturbation, rounded)


def flushed_operands(node: Node, operands: list[Value]) -> list[Value]:
    """Return the operands of a product of bf16 without subnormal numbers; those of other nodes as they are."""
    if not is_contraction_node(node) or not all(o.dtype == bf16 for o in node.operands):
        return operands
    tiny = resolution(bf16)[1]
    return [torch.where(x.abs() < tiny, torch.zeros_like(x), x) for x in operands]


def _run_graph(
    graph: Graph, inputs: Sequence[Value], perturbation: PerturbedRun | None, rounded: bool
) -> dict[Node, Value]:
    values: dict[Node, Value] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        if node in values:
            continue
        operands = [perturbation.observed_value(o, values[o]) if perturbation else values[o] for o in node.operands]
        if perturbation and not rounded:
            operands = [_with_float64_noise(o, perturbation.rng) for o in operands]
        if perturbation and rounded and perturbation.rng.random() < FLUSH_PROBABILITY:
            operands = flushed_operands(node, operands)
        if isinstance(node.structure, Recurrence):
            inner = replace(perturbation, previous_values={}) if perturbation else None
            body = partial(_graph_outputs, node.attrs["body"], inner, rounded)
            steps = run_steps(node, operands, body, lambda values: torch.stack(tuple(values)))
            values[node] = steps if isinstance(node.result_type, tuple) else steps[0]
            continue
        value = reference_value(node, operands)
        if rounded and node.op not in (CONSTANT, INPUT):
            value = _perturb(node, operands, value, perturbation)
        values[node] = value
    return values


def _float64_noise_runs(graph: Graph, inputs: Sequence[Array], seed: int, count: int) -> list[dict[Node, Value]]:
    """Run the graph without rounding but with float64's errors; no runs if an index is then out of range."""
    perturbations = (PerturbedRun(np.random.default_rng((seed, k))) for k in range(count))
    try:
        return [run_perturbed(graph, inputs, p, rounded=False) for p in perturbations]
    except IndexError:
        return []


def _with_float64_noise(value: Value, rng: np.random.Generator) -> Value:
    """Return `value` with a relative error of float64's epsilon at most."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    return value * (1.0 + torch.finfo(torch.float64).eps * noise)


def _graph_outputs(
    graph: Graph, perturbation: PerturbedRun | None, rounded: bool, inputs: Sequence[Value]
) -> list[Value]:
    values = _run_graph(graph, inputs, perturbation, rounded)
    return [values[n] for n in graph.outputs]


def reference_value(node: Node, operands: list[Value]) -> Value:
    """Evaluate `node` in float64 by its reference, or by its structure if that fails (as in a division by zero)."""
    if not _may_trap(node, operands):
        try:
            return evaluate_node(node, operands, torch.float64)
        except (IndexError, RuntimeError):
            pass
    return _structure_value(node, operands)


def _may_trap(node: Node, operands: list[Value]) -> bool:
    """Return True if an integer division by -1 might overflow, which ends the process in PyTorch."""
    integers = [o for o in operands if isinstance(o, torch.Tensor) and o.dtype in (torch.int32, torch.int64)]
    if not isinstance(node.structure, Elementwise) or len(integers) < 2:
        return False
    has_minimum = any(o.numel() and bool((o == torch.iinfo(o.dtype).min).any()) for o in integers)
    return has_minimum and any(bool((o == -1).any()) for o in integers)


def _structure_value(node: Node, operands: list[Value]) -> Value:
    arrays = [as_array(o).astype(n.dtype.numpy) for o, n in zip(operands, node.operands, strict=True)]
    return to_float64(as_tensor(evaluate_structure(node, arrays), node.dtype))


def to_float64(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _perturb(node: Node, operands: list[Value], value: Value, perturbation: PerturbedRun | None) -> Value:
    """Round `value` to the dtype of `node` after adding a random error of the size that computing it may make."""
    if isinstance(value, tuple):
        types: Any = node.result_type
        return tuple(_round(v, t.dtype) for v, t in zip(value, types, strict=True))
    if not node.dtype.is_float:
        return value if perturbation is None else _randomize_invalid_casts(node, operands, value, perturbation.rng)
    if perturbation is None:
        return _round(value, node.dtype)
    rng = perturbation.rng
    if not isinstance(node.structure, IndexMap | Gather):
        value = _randomize_nan_sign(value, rng)
    if isinstance(node.structure, Elementwise) and is_flushing(node):
        value = _randomize_flushed(value, rng)
    if isinstance(node.structure, Reduction) and len(operands) == 2:
        value = _randomize_masked_nan(node, operands, value, rng)
        value = _randomize_offset_infinities(node, value, rng)
    rounded = _round(value, node.dtype)
    errors = error_bounds(node, operands, value, rounded)
    if errors is None:
        return rounded
    usual = errors.rounding + errors.computing
    error = usual * perturbation.error_scale
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    shape = tuple(value.shape) if rng.random() < 0.75 else ()  # alike everywhere, as in a tile of Winograd
    special = torch.from_numpy(np.asarray(rng.choice([np.inf, -np.inf, np.nan, 1.0], shape)))
    perturbed = _round(value + torch.nan_to_num(noise * error, 0.0), node.dtype)
    probability = rng.choice((RECOMPUTE_PROBABILITY, RECOMPUTE_PROBABILITY, 1.0))  # 1.0: everywhere, in some runs
    cancels = torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < probability)) & (value.abs() <= usual)
    perturbed = torch.where(cancels, 0.0, perturbed)
    overflows = errors.overflow_mask(node, value) & ~value.isnan()
    overflows = overflows | (value.isnan() & errors.computing.isinf())  # infinity times a product that left the range
    return torch.where(overflows, value if perturbation.keeps_overflow else special, perturbed)


def _randomize_nan_sign(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Give NaN elements random signs, which IEEE 754 does not specify for arithmetic results."""
    if not value.isnan().any():
        return value
    sign = torch.from_numpy(np.asarray(rng.choice([-1.0, 1.0], tuple(value.shape))))
    return torch.where(value.isnan(), torch.copysign(value, sign), value)


def _randomize_flushed(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Replace values above 1 at random by 1: flushing exponentials of positive numbers are any number from 1."""
    return torch.where((value > 1) & _some_elements(value, rng), 1.0, value)


def _some_elements(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Choose elements of `value` at random: a half of them, or in some runs all, as code does that treats a block alike."""
    return torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < rng.choice((0.5, 0.5, 1.0))))


def _randomize_masked_nan(
    node: Node, operands: list[Value], value: torch.Tensor, rng: np.random.Generator
) -> torch.Tensor:
    """Replace at random a NaN from infinity times 0 by the result without that product.

    Such products may be skipped: 0 is padding, or a weight between 0 and 1 from a softmax that masks the element.
    """
    if not value.isnan().any():
        return value
    weights, x = operands
    special_weights, special_x = ~weights.isfinite(), ~x.isfinite()

    def anywhere(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return True for each result that has a term where both hold."""
        result: Any = evaluate_node(node, [a.double(), b.double()], torch.float64)
        holds: torch.Tensor = result > 0
        return holds

    is_nan = anywhere(weights != 0, x.isnan()) | anywhere(weights.isnan(), x != 0)
    if not _is_padded(node.operands[0]):
        dtype = node.operands[0].dtype
        slack = 16 * resolution(dtype)[0] if dtype.is_float else 0.0
        not_softmax = (weights < -slack) | (weights > 1 + slack)
        is_nan = is_nan | (anywhere(weights == 0, special_x) & anywhere(not_softmax, torch.ones_like(x)))
    if not _is_padded(node.operands[1]):
        is_nan = is_nan | anywhere(special_weights, x == 0)
    finite_operands: list[Value] = [torch.where(special_weights, 0.0, weights), torch.where(special_x, 0.0, x)]
    skipped: Any = evaluate_node(node, finite_operands, torch.float64)
    for large in (torch.inf, -torch.inf):
        of_x = anywhere(weights > 0, x == large) | anywhere(weights < 0, x == -large)
        of_weights = anywhere(weights == large, x > 0) | anywhere(weights == -large, x < 0)
        skipped = torch.where(of_x | of_weights, skipped + large, skipped)
    return torch.where(value.isnan() & ~is_nan & _some_elements(value, rng), skipped, value)


def _randomize_offset_infinities(node: Node, value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Replace infinite sums of products with constant codes by NaN at random.

    Integers may be read with an offset that a correction takes away, and rows be scaled: infinities then cancel.
    """
    if node.dtype.compute != f32 or not value.isinf().any() or not any(map(has_known_codes, node.operands)):
        return value
    return torch.where(value.isinf() & _some_elements(value, rng), torch.nan, value)


def _is_padded(node: Node) -> bool:
    """Return True if `node` is a view that may contain padding zeros."""
    structure = node.structure
    return isinstance(structure, IndexMap) and (structure.fill is not None or any(map(_is_padded, node.operands)))


def _round(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Round floats to `dtype`; NaN keeps its sign, which PyTorch's conversion may change."""
    return torch.where(value.isnan(), value, value.to(TORCH_DTYPES[dtype]).double()) if dtype.is_float else value


def _randomize_invalid_casts(
    node: Node, operands: list[Value], value: torch.Tensor, rng: np.random.Generator
) -> torch.Tensor:
    """Replace results of casts from floats out of the integer range, which are undefined, by random integers."""
    pointwise = isinstance(node.structure, Elementwise) and node.dtype.is_integer and bool(operands)
    if not (pointwise and operands[0].is_floating_point()):
        return value
    info, x = torch.iinfo(TORCH_DTYPES[node.dtype]), operands[0]
    invalid = ~((x > info.min - 1.0) & (x < info.max + 1.0))
    typical = np.array([0, info.min, info.max, rng.integers(info.min, info.max, endpoint=True)])
    random_values = torch.from_numpy(np.asarray(rng.choice(typical, tuple(x.shape)))).to(value.dtype)
    return torch.where(invalid.expand(value.shape), random_values, value)
