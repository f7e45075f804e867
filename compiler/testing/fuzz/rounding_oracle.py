"""Rounding oracle: float64 results of a graph and bounds of the rounding errors that a compiled program may make.

A *perturbed run* evaluates the decomposed graph in float64 and rounds every value to its dtype after adding a random error of the
size that the op's arithmetic may make, as in Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic", 1997).  Where perturbed
runs agree, a compiled program must agree with them; their spread bounds its error.  A value with several uses may be recomputed,
so each use may observe the value of the previous run.  Thus the floor of a number near an integer, a sum that cancels, and an
index chosen among equals are uncertain exactly there, and everything else must be right to a few units in the last place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import (
    ConstantLinear,
    Elementwise,
    Gather,
    Generate,
    IndexMap,
    Recurrence,
    Reduction,
    Scan,
    Scatter,
    elementwise_expr,
)
from compiler.ir.interpret.graph import evaluate_node
from compiler.ir.interpret.structure import evaluate_structure
from compiler.ir.ops.recurrence import run_steps
from compiler.ir.scalar import APPROXIMATED
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.torch_types import TORCH_DTYPES, as_array, as_tensor
from compiler.ir.types import DType, f32
from compiler.passes.graph.winograd import INTERPOLATION_POINTS, is_unit_stride_3x3
from compiler.passes.manager import run_pipeline
from compiler.testing.fuzz.inputs import Array

Value: TypeAlias = Any
"""A tensor, or a tuple of tensors."""

ERROR_SLACK = 4.0
"""Allowed error as a multiple of the spread of perturbed runs; chosen empirically."""

RECOMPUTE_PROBABILITY = 0.25
"""Probability that a use observes the value of the previous run; chosen empirically."""


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
    classes = np.zeros(array.shape, np.int8)
    classes[np.isposinf(array)], classes[np.isneginf(array)], classes[np.isnan(array)] = 1, -1, 2
    return classes


def expectations(graph: Graph, inputs: Sequence[Array], seed: int = 0, runs: int = 5) -> list[Expectation]:
    """Return the expectation of each output of a static graph for `inputs`, from `runs` perturbed runs.

    Outputs are unconstrained if an index is out of range in one of the runs.  Raises IndexError if it is without perturbation.
    """
    decomposed = run_pipeline(graph, "decompose")
    truth, rounded = run_perturbed(graph, inputs, None, rounded=False), run_perturbed(graph, inputs, None)
    noise = _float64_noise_runs(graph, inputs, seed, 1 + runs // 8)
    usual: list[dict[Node, Value]] = [run_perturbed(decomposed, inputs, None)]
    scaled: list[dict[Node, Value]] = []
    for k in range(runs):
        # nonlinear functions, as a sine at its maximum, do not scale the error by the same factor
        scale = ERROR_SLACK if k % 3 == 2 else 1.0
        perturbation = PerturbedRun(np.random.default_rng((seed, k)), scale, k % 4 == 1, usual[-1])
        try:
            values = run_perturbed(decomposed, inputs, perturbation)
        except IndexError:
            return [Expectation.unconstrained(as_array(truth[n])) for n in graph.outputs]
        (usual if scale == 1.0 else scaled).append(values)
    return [
        _combine_runs(n, truth[n], rounded[n], [r[n] for r in noise], [r[o] for r in usual], [r[o] for r in scaled])
        for n, o in zip(graph.outputs, decomposed.outputs, strict=True)
    ]


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
    usual size, the first one none, and `scaled_runs` have ERROR_SLACK times larger errors.
    """
    observed = np.stack([as_array(r) for r in (*usual_runs, *scaled_runs)])
    first = observed[0]
    if not node.dtype.is_float:
        certain = np.all(observed == first, axis=0) & (as_array(unperturbed) == first)
        return Expectation(first, np.where(certain, 0.0, np.inf), ())
    true, own = as_array(truth), as_array(unperturbed)
    with np.errstate(all="ignore"):
        noise = [np.nan_to_num(16 * np.abs(as_array(r) - true)) for r in noise_runs]
        float64_error = np.max(noise, axis=0, initial=1e-13 * np.max(np.abs(true[np.isfinite(true)]), initial=1.0))
        deviation = np.abs(observed - first)
        deviation[len(usual_runs) :] /= ERROR_SLACK
        spread = np.max(deviation, axis=0, initial=0.0)
        decomposition = np.abs(own - first)  # the decomposed graph rounds elsewhere
        eps, tiny = resolution(node.dtype)
        near = decomposition <= 64 * (spread + eps * np.abs(first))
        error = ERROR_SLACK * (spread + np.where(near, decomposition, 0)) + 4 * eps * np.abs(true) + 8 * tiny * eps
        rounding = np.abs(true - first)  # values near the first run are as good as values near the truth
        error = error + np.where(rounding <= np.maximum(error, float64_error), rounding, 0)
    classes = (float_class(true), float_class(own), *map(float_class, observed))
    agree = np.all([c == classes[2] for c in classes[2:]], axis=0)
    finite = agree & (classes[2] == 0)
    with np.errstate(all="ignore"):
        depends_on_rounding = np.isfinite(own) & (np.abs(true - own) > error)  # `truth` is another result
    value = np.where(finite & np.isfinite(true), np.where(depends_on_rounding, own, true), first)
    error = np.where(finite, np.where(np.isnan(error), np.inf, error), np.where(agree, 0.0, np.inf))
    return Expectation(value, error, classes)


def resolution(dtype: DType) -> tuple[float, float]:
    """Return the distance between 1 and the next number of `dtype`, and its smallest normal number."""
    info = torch.finfo(TORCH_DTYPES[dtype])
    return float(info.eps), float(info.smallest_normal)


def run_perturbed(
    graph: Graph, inputs: Sequence[Array], perturbation: PerturbedRun | None, rounded: bool = True
) -> dict[Node, Value]:
    """Evaluate every node in float64 (integers as they are), rounded to its dtype, with the errors of `perturbation` if any."""
    values = [to_float64(as_tensor(x, n.dtype)) for n, x in zip(graph.inputs, inputs, strict=True)]
    return _run_graph(graph, values, perturbation, rounded)


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
    if isinstance(node.structure, Reduction) and len(operands) == 2:
        value = _randomize_masked_nan(node, operands, value, rng)
    rounded = _round(value, node.dtype)
    errors = error_bounds(node, operands, value, rounded)
    if errors is None:
        return rounded
    usual = errors.rounding + errors.computing
    error = usual * perturbation.error_scale
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    special = torch.from_numpy(np.asarray(rng.choice([np.inf, -np.inf, np.nan, 1.0], tuple(value.shape))))
    perturbed = _round(value + torch.nan_to_num(noise * error, 0.0), node.dtype)
    probability = rng.choice((RECOMPUTE_PROBABILITY, RECOMPUTE_PROBABILITY, 1.0))  # 1.0: everywhere, in some runs
    cancels = torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < probability)) & (value.abs() <= usual)
    perturbed = torch.where(cancels, 0.0, perturbed)
    overflows = errors.overflow_mask(node, value) & ~value.isnan()
    return torch.where(overflows, value if perturbation.keeps_overflow else special, perturbed)


def _randomize_nan_sign(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Give NaN elements random signs, which IEEE 754 does not specify for arithmetic results."""
    if not value.isnan().any():
        return value
    sign = torch.from_numpy(np.asarray(rng.choice([-1.0, 1.0], tuple(value.shape))))
    return torch.where(value.isnan(), torch.copysign(value, sign), value)


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
    chosen = torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < 0.5))
    return torch.where(value.isnan() & ~is_nan & chosen, skipped, value)


def _is_padded(node: Node) -> bool:
    """Return True if `node` is a view that may contain padding zeros."""
    structure = node.structure
    return isinstance(structure, IndexMap) and (structure.fill is not None or any(map(_is_padded, node.operands)))


def _round(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    return value.to(TORCH_DTYPES[dtype]).double() if dtype.is_float else value


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


@dataclass(frozen=True)
class ErrorBounds:
    """Bounds of the errors of each element: of rounding it to its dtype, and of computing it."""

    rounding: torch.Tensor
    computing: torch.Tensor

    def overflow_mask(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        """Return True for elements that overflow their dtype, or whose partial results may."""
        partial = node.dtype if isinstance(node.structure, Scatter) else node.dtype.compute
        largest, limits = torch.finfo(TORCH_DTYPES[node.dtype]).max, torch.finfo(TORCH_DTYPES[partial])
        return (value.isfinite() & (value.abs() > largest)) | (self.computing > limits.max * limits.eps)


def error_bounds(node: Node, operands: list[Value], value: torch.Tensor, rounded: torch.Tensor) -> ErrorBounds | None:
    """Return bounds of the errors of each element, or None if the op is exact."""
    eps, tiny = resolution(node.dtype)
    inner = resolution(node.dtype.compute)[0]
    exact = value == (rounded if node.dtype.bits < 64 else value.float())  # rounding to f64 is invisible here
    if node.dtype.bits == 64 and isinstance(node.structure, Elementwise):  # selection is exact
        exact = exact | sum((value == o for o in operands), start=torch.zeros(()).bool())
    rounding = torch.where(~exact, eps * value.abs().clamp(min=tiny), torch.zeros(()).double())
    match node.structure:
        case Elementwise():
            return ErrorBounds(rounding, _formula_error(node, operands, value, inner))
        case Reduction(combine="add"):
            return ErrorBounds(rounding, _sum_error(node, operands, inner, _reduction_length(node)))
        case Reduction(combine="mul"):
            return ErrorBounds(rounding, _product_error(node, operands, value, inner, _reduction_length(node)))
        case ConstantLinear():
            _, matrix = node.structure.axis_and_matrix(node)
            absolute = replace(node, attrs={**node.attrs, "matrix": tuple(tuple(map(abs, row)) for row in matrix)})
            return ErrorBounds(rounding, _sum_error(absolute, operands, inner, len(matrix[0]) if matrix else 0))
        case Scan(combine="max" | "min"):
            return None
        case Scan(combine="add"):
            return ErrorBounds(rounding, _sum_error(node, operands, inner, node.shape[node.attrs["dim"]]))
        case Scan(combine="mul"):
            return ErrorBounds(rounding, _product_error(node, operands, value, inner, node.shape[node.attrs["dim"]]))
        case Scan():
            steps = node.shape[node.structure.axis(node).dim]
            from_operands = sum(4 * inner * x.abs() for x in operands if x.is_floating_point())
            computing = inner * (2 + steps) * value.abs() + from_operands
            return ErrorBounds(rounding, torch.where(exact, 0.0, computing))
        case Scatter():
            combine = node.structure.combine(node)
            if combine == "add":
                return ErrorBounds(rounding, _sum_error(node, operands, eps, operands[-1].numel() or 1))
            return ErrorBounds(rounding, eps * 8 * value.abs()) if combine == "mul" else None
        case Generate():
            return ErrorBounds(rounding, torch.zeros(()).double())
    return None


def _formula_error(node: Node, operands: list[Value], value: torch.Tensor, eps: float) -> torch.Tensor:
    """Bound the error of an elementwise formula by its result and, if it has several steps, by its operands."""
    steps = [e.primitive for e in elementwise_expr(node).calls]
    approximated = APPROXIMATED.intersection(steps)
    if not steps or (len(steps) == 1 and not approximated):
        return torch.zeros(()).double()
    error = 2 * eps * value.abs()
    if "pow" in approximated or (approximated and node.dtype.bits == 64):  # exponents are rounded first
        error = error + eps * value.abs() * value.abs().log().abs().nan_to_num(0.0, 0.0, 0.0)
    if approximated and node.dtype.bits == 64:  # the reference is no more accurate, except for infinite operands
        finite = ~sum((x.isinf() for x in operands if x.is_floating_point()), start=torch.zeros(()).bool())
        error = error + torch.where(finite, 4 * eps * value.abs().clamp(min=1.0), 0.0)
    if len(steps) > 2:
        for x in operands:
            if x.is_floating_point():
                error = error + 2 * eps * x.abs().clamp(max=16.0)
    return error


def _reduction_length(node: Node) -> int:
    assert isinstance(node.structure, Reduction)
    return int(np.prod([evaluate(d, {}) for d in node.structure.domain(node).extents]))


def _sum_error(node: Node, operands: list[Value], eps: float, count: int) -> torch.Tensor:
    """Bound the error of adding `count` terms in any order; infinite terms are ignored."""
    if node.dtype.compute == f32 and is_unit_stride_3x3(node):
        return _winograd_error(node, operands, eps)
    floats = [o for o in operands if o.is_floating_point()]
    absolute = [o.abs().nan_to_num(0.0, 0.0) if o.is_floating_point() else o for o in operands]
    magnitude: Any = evaluate_node(node, absolute, torch.float64)
    weighted = isinstance(node.structure, Reduction) and len(operands) == 2  # weights may be scaled first
    exact = not weighted and all(bool((o == o.round()).all()) for o in floats)
    error: torch.Tensor = magnitude * eps * (2 + 0.25 * count**0.5)
    error = (error * 8 if weighted else error) + torch.where(magnitude > 0, count * _smallest_increment(node) / 2, 0.0)
    return torch.where((magnitude * eps < 0.5) & exact, torch.zeros(()).double(), error)


def _smallest_increment(node: Node) -> float:
    """Return the smallest subnormal of the accumulator dtype, to a multiple of which terms are rounded."""
    eps, tiny = resolution(node.dtype.compute)
    return eps * tiny


def _winograd_error(node: Node, operands: list[Value], eps: float) -> torch.Tensor:
    """Bound the error of a convolution that may use Winograd's algorithm: a large element affects all results of its tile."""
    radius = max(INTERPOLATION_POINTS) + 1
    x, w = (o.double().abs().nan_to_num(torch.inf, torch.inf).clamp(min=1e-300) for o in operands)
    images = x.flatten(0, -3)
    largest = F.max_pool2d(images, 2 * radius + 1, 1, radius).view_as(x) if x.numel() else x
    magnitude: Any = evaluate_node(node, [largest, w], torch.float64)
    error: torch.Tensor = magnitude * eps * 8 * (2 + 0.25 * _reduction_length(node) ** 0.5)
    return error


def _product_error(node: Node, operands: list[Value], value: torch.Tensor, eps: float, count: int) -> torch.Tensor:
    """Bound the error of multiplying `count` factors in any order; infinite if a partial product may leave the range."""
    error = (2 + count) * eps * value.abs().nan_to_num(0.0, 0.0)
    if not node.dtype.is_float:
        return error
    finite = [x.abs().nan_to_num(1.0, 1.0) for x in operands]
    growth: Any = evaluate_node(node, [x.clamp(min=1.0) for x in finite], torch.float64)
    decay: Any = evaluate_node(node, [x.where(x > 0, 1.0).clamp(max=1.0) for x in finite], torch.float64)
    info = torch.finfo(TORCH_DTYPES[node.dtype.compute])
    overflows, underflows = growth > info.max, decay < info.smallest_normal
    leaves = (overflows & ((decay < 1) | (value == 0))) | (underflows & ((growth > 1) | value.isinf()))
    return torch.where(leaves, torch.inf, error)
