"""What a graph may answer: the float64 truth, and how far honest rounding can be from it.

A *world* is a run of the decomposed graph in float64 where every value is rounded to its type after a random error of the size
that this op's arithmetic may make.  Where worlds agree, a compiled program must agree with them; how far they are apart says
how far it may be off.  What is used twice may be computed twice, so each use may see what the world before it had.  So the floor
of a number near an integer, a sum that cancels, and an index chosen between equals are uncertain exactly where they are, and
everything else is held to a few units in the last place.
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
from compiler.ir.types import DType, accumulator_dtype
from compiler.passes.graph.winograd import INTERPOLATION_POINTS, is_unit_stride_3x3
from compiler.passes.manager import run_pipeline
from compiler.testing.fuzz.inputs import Array

Value: TypeAlias = Any
"""A tensor, or a tuple of tensors."""

ERROR_SLACK = 4.0
"""How many times the distance between worlds an answer may be off."""

RECOMPUTE_PROBABILITY = 0.25
"""How often a use sees another world's value."""


@dataclass(frozen=True)
class PerturbedRun:
    """What one world draws its errors from, how many times the usual size they have, whether what is too large for its type is
    kept as it is, and the values of the world before it."""

    rng: np.random.Generator
    error_scale: float = 1.0
    keeps_overflow: bool = False
    previous_values: Mapping[Node, Value] = field(default_factory=dict)

    def observed_value(self, node: Node, value: Value) -> Value:
        """`value`, or what the world before has for `node`."""
        return (
            self.previous_values[node]
            if node in self.previous_values and self.rng.random() < RECOMPUTE_PROBABILITY
            else value
        )


@dataclass(frozen=True)
class Expectation:
    """What output number `k` may be: near `value` within `error`; infinite errors mean that anything may be there."""

    value: Array
    error: Array
    float_classes: tuple[Array, ...]

    @classmethod
    def unconstrained(cls, value: Array) -> Expectation:
        return cls(value, np.full(value.shape, np.inf), ())

    def describe_mismatch(self, got: Array) -> str:
        """What is wrong with `got`; nothing where it is as expected."""
        if got.shape != self.value.shape:
            return f"the result has shape {list(got.shape)} instead of {list(self.value.shape)}"
        with np.errstate(all="ignore"):
            if got.dtype.kind != "f":
                bad = (got != self.value) & (self.error == 0)
            else:
                near = np.abs(got.astype(np.float64) - self.value) <= self.error
                same = near | ((got == self.value) & ~np.isfinite(self.value))
                other = np.any([float_class(got) == k for k in self.float_classes], axis=0) & ~(
                    np.isfinite(got) & np.isfinite(self.value)
                )
                bad = ~(same | other | np.isinf(self.error))
        if not bad.any():
            return ""
        place = tuple(int(d) for d in np.argwhere(bad)[0])
        allowed = f" within {self.error[place]:.3g}" if got.dtype.kind == "f" else ""
        return f"{int(bad.sum())} of {bad.size} elements are wrong; element {list(place)} is {got[place]!r} instead of {self.value[place]!r}{allowed}"

    @property
    def checked_elements(self) -> int:
        """How many elements are held to something."""
        return int(np.isfinite(self.error).sum()) if self.value.dtype.kind == "f" else int((self.error == 0).sum())


def float_class(array: Array) -> Array:
    """What sort of number stands where: 0 finite, 1 and -1 infinite, 2 NaN."""
    code = np.zeros(array.shape, np.int8)
    code[np.isposinf(array)], code[np.isneginf(array)], code[np.isnan(array)] = 1, -1, 2
    return code


def expectations(graph: Graph, inputs: Sequence[Array], seed: int = 0, runs: int = 5) -> list[Expectation]:
    """What each output of a graph without symbols may be for `inputs`; anything where rounding decides whether an index is in range."""
    decomposed = run_pipeline(graph, "decompose")
    truth, plain = run_perturbed(graph, inputs, None, rounded=False), run_perturbed(graph, inputs, None)
    shaken = _float64_noise_runs(graph, inputs, seed, 1 + runs // 8)
    first = run_perturbed(decomposed, inputs, None)
    usual: list[dict[Node, Value]] = [first]
    large: list[dict[Node, Value]] = []
    for k in range(runs):
        # what bends, as a sine at its top, is not as many times off as the error is larger
        size = ERROR_SLACK if k % 3 == 2 else 1.0
        try:
            seen = run_perturbed(
                decomposed, inputs, PerturbedRun(np.random.default_rng((seed, k)), size, k % 4 == 1, usual[-1])
            )
        except IndexError:
            return [Expectation.unconstrained(as_array(truth[n])) for n in graph.outputs]
        (usual if size == 1.0 else large).append(seen)
    return [
        _combine_runs(n, truth[n], [t[n] for t in shaken], [w[o] for w in usual], [w[o] for w in large], plain[n])
        for n, o in zip(graph.outputs, decomposed.outputs, strict=True)
    ]


def _combine_runs(
    node: Node,
    truth: torch.Tensor,
    float64_noise_runs: Sequence[torch.Tensor],
    usual_runs: Sequence[torch.Tensor],
    scaled_runs: Sequence[torch.Tensor],
    unperturbed: torch.Tensor,
) -> Expectation:
    """What may come of `node`, by worlds with errors of the usual size, the first one with none, and by some with larger ones;
    `shaken` is the truth with float64's own errors."""
    seen = np.stack([as_array(w) for w in (*usual_runs, *scaled_runs)])
    first = seen[0]
    if not node.dtype.is_float:
        certain = np.all(seen == first, axis=0) & (as_array(unperturbed) == first)
        return Expectation(first, np.where(certain, 0.0, np.inf), ())
    true, own = as_array(truth), as_array(unperturbed)
    with np.errstate(all="ignore"):
        fine = 1e-13 * np.max(np.abs(true[np.isfinite(true)]), initial=1.0)  # what float64 itself rounds away
        fine = np.max(
            [np.nan_to_num(16 * np.abs(as_array(s) - true)) for s in float64_noise_runs], axis=0, initial=fine
        )
        off = np.abs(seen - first)
        off[len(usual_runs) :] /= ERROR_SLACK
        spread = np.max(off, axis=0, initial=0.0)
        apart = np.abs(own - first)
        eps, tiny = resolution(node.dtype)
        error = (
            ERROR_SLACK * (spread + np.where(apart <= 64 * (spread + eps * np.abs(first)), apart, 0))
            + 4 * eps * np.abs(true)
            + 8 * tiny * eps
        )
        aside = np.abs(true - first)  # what is near the first world is as good as what is near the truth
        error = error + np.where(aside <= np.maximum(error, fine), aside, 0)
    kinds = (float_class(true), float_class(own), *(float_class(w) for w in seen))
    agree = np.all([k == kinds[2] for k in kinds[2:]], axis=0)
    finite = agree & (kinds[2] == 0)
    with np.errstate(all="ignore"):
        rounds = np.isfinite(own) & (np.abs(true - own) > error)  # its answer hangs on what float64 does not round away
    value = np.where(finite & np.isfinite(true), np.where(rounds, own, true), first)
    error = np.where(finite, np.where(np.isnan(error), np.inf, error), np.where(agree, 0.0, np.inf))
    return Expectation(value, error, kinds)


def resolution(dtype: DType) -> tuple[float, float]:
    """The distance between 1 and the next number of `dtype`, and its smallest normal number."""
    info = torch.finfo(TORCH_DTYPES[dtype])
    return float(info.eps), float(info.smallest_normal)


def run_perturbed(
    graph: Graph, inputs: Sequence[Array], perturbation: PerturbedRun | None, rounded: bool = True
) -> dict[Node, Value]:
    """Every value in float64 (integers as they are), rounded to its type, with the errors of `world` if there is one."""
    given = [to_float64(as_tensor(x, n.dtype)) for n, x in zip(graph.inputs, inputs, strict=True)]
    return _run_graph(graph, given, perturbation, rounded)


def _run_graph(
    graph: Graph, given: Sequence[Value], perturbation: PerturbedRun | None, rounded: bool
) -> dict[Node, Value]:
    known: dict[Node, Value] = dict(zip(graph.inputs, given, strict=True))
    for node in graph.nodes:
        if node in known:
            continue
        operands = [perturbation.observed_value(o, known[o]) if perturbation else known[o] for o in node.operands]
        if perturbation and not rounded:
            operands = [_with_float64_noise(o, perturbation.rng) for o in operands]
        if isinstance(node.structure, Recurrence):
            within = replace(perturbation, previous_values={}) if perturbation else None
            steps = run_steps(node, operands, partial(_graph_outputs, node.attrs["body"], within, rounded), _stack)
            known[node] = steps if isinstance(node.result_type, tuple) else steps[0]
            continue
        value = reference_value(node, operands)
        if rounded and node.op not in (CONSTANT, INPUT):
            value = _perturb(node, operands, value, perturbation)
        known[node] = value
    return known


def _float64_noise_runs(graph: Graph, inputs: Sequence[Array], seed: int, count: int) -> list[dict[Node, Value]]:
    """The truth with the errors that float64 makes; nothing where they lead out of range."""
    worlds = (PerturbedRun(np.random.default_rng((seed, k))) for k in range(count))
    try:
        return [run_perturbed(graph, inputs, w, rounded=False) for w in worlds]
    except IndexError:
        return []


def _with_float64_noise(value: Value, rng: np.random.Generator) -> Value:
    """`value` with the errors that float64 makes."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    return value * (1.0 + torch.finfo(torch.float64).eps * noise)


def _graph_outputs(
    graph: Graph, perturbation: PerturbedRun | None, rounded: bool, given: Sequence[Value]
) -> list[Value]:
    known = _run_graph(graph, given, perturbation, rounded)
    return [known[n] for n in graph.outputs]


def _stack(values: Sequence[Value]) -> Value:
    return torch.stack(list(values))


def reference_value(node: Node, operands: list[Value]) -> Value:
    """The value of `node` in float64: by its reference, or where that raises an error (a division by zero), by its structure."""
    if _may_trap(node, operands):
        return _structure_value(node, operands)
    try:
        return evaluate_node(node, operands, torch.float64)
    except (IndexError, RuntimeError):
        return _structure_value(node, operands)


def _may_trap(node: Node, operands: list[Value]) -> bool:
    """Whether an integer division by -1 might overflow, which ends the process in PyTorch."""
    whole = [o for o in operands if isinstance(o, torch.Tensor) and o.dtype in (torch.int32, torch.int64)]
    lowest = any(o.numel() and bool((o == torch.iinfo(o.dtype).min).any()) for o in whole)
    return (
        isinstance(node.structure, Elementwise)
        and len(whole) > 1
        and lowest
        and any(bool((o == -1).any()) for o in whole)
    )


def _structure_value(node: Node, operands: list[Value]) -> Value:
    arrays = [as_array(o).astype(n.dtype.numpy) for o, n in zip(operands, node.operands, strict=True)]
    return to_float64(as_tensor(evaluate_structure(node, arrays), node.dtype))


def to_float64(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _perturb(node: Node, operands: list[Value], value: Value, perturbation: PerturbedRun | None) -> Value:
    """`value` rounded to the type of `node`, after an error of the size that computing it may make."""
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
    size = usual * perturbation.error_scale
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    wild = torch.from_numpy(np.asarray(rng.choice([np.inf, -np.inf, np.nan, 1.0], tuple(value.shape))))
    erring = _round(value + torch.nan_to_num(noise * size, 0.0), node.dtype)
    often = rng.choice((RECOMPUTE_PROBABILITY, RECOMPUTE_PROBABILITY, 1.0))  # in some worlds, everywhere
    cancels = torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < often)) & (value.abs() <= usual)
    erring = torch.where(cancels, 0.0, erring)
    overflows = errors.overflow_mask(node, value) & ~value.isnan()
    return torch.where(overflows, value if perturbation.keeps_overflow else wild, erring)


def _randomize_nan_sign(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """IEEE 754 leaves open which sign arithmetic gives a NaN."""
    if not value.isnan().any():
        return value
    sign = torch.from_numpy(np.asarray(rng.choice([-1.0, 1.0], tuple(value.shape))))
    return torch.where(value.isnan(), torch.copysign(value, sign), value)


def _randomize_masked_nan(
    node: Node, operands: list[Value], value: torch.Tensor, rng: np.random.Generator
) -> torch.Tensor:
    """What is infinite may make NaN or be left out where it is multiplied by 0: by padding, or by one of the weights between 0 and 1
    that a softmax makes, which gives 0 to what is hidden."""
    if not value.isnan().any():
        return value
    weights, x = operands
    wild, wild_x = ~weights.isfinite(), ~x.isfinite()

    def anywhere(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Whether both hold at some point of each sum."""
        result: Any = evaluate_node(node, [a.double(), b.double()], torch.float64)
        holds: torch.Tensor = result > 0
        return holds

    counts = anywhere(weights != 0, x.isnan()) | anywhere(weights.isnan(), x != 0)
    if not _is_padded(node.operands[0]):
        slack = 16 * resolution(node.operands[0].dtype)[0]
        others = (weights < -slack) | (weights > 1 + slack)
        counts = counts | (anywhere(weights == 0, wild_x) & anywhere(others, torch.ones_like(x)))
    if not _is_padded(node.operands[1]):
        counts = counts | anywhere(wild, x == 0)
    left_out: Any = evaluate_node(node, [torch.where(wild, 0.0, weights), torch.where(wild_x, 0.0, x)], torch.float64)
    for large in (torch.inf, -torch.inf):
        of_x = anywhere(weights > 0, x == large) | anywhere(weights < 0, x == -large)
        of_weights = anywhere(weights == large, x > 0) | anywhere(weights == -large, x < 0)
        left_out = torch.where(of_x | of_weights, left_out + large, left_out)
    chosen = torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < 0.5))
    return torch.where(value.isnan() & ~counts & chosen, left_out, value)


def _is_padded(node: Node) -> bool:
    """Whether zeros may have been put around or between the elements of `node`."""
    return isinstance(node.structure, IndexMap) and (
        node.structure.fill is not None or any(map(_is_padded, node.operands))
    )


def _round(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    return value.to(TORCH_DTYPES[dtype]).double() if dtype.is_float else value


def _randomize_invalid_casts(
    node: Node, operands: list[Value], value: torch.Tensor, rng: np.random.Generator
) -> torch.Tensor:
    """Integers made of numbers that no integer of the type is near are whatever the machine makes of them."""
    if not (
        isinstance(node.structure, Elementwise)
        and node.dtype.is_integer
        and operands
        and operands[0].is_floating_point()
    ):
        return value
    info, x = torch.iinfo(TORCH_DTYPES[node.dtype]), operands[0]
    beyond = ~((x > info.min - 1.0) & (x < info.max + 1.0))
    usual = np.array([0, info.min, info.max, rng.integers(info.min, info.max, endpoint=True)])
    chance = torch.from_numpy(np.asarray(rng.choice(usual, tuple(x.shape)))).to(value.dtype)
    return torch.where(beyond.expand(value.shape), chance, value)


@dataclass(frozen=True)
class ErrorBounds:
    """How large the errors of each element may be: of rounding it to its type, and of computing it."""

    rounding: torch.Tensor
    computing: torch.Tensor

    def overflow_mask(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        """Where `value`, or a part of what it is computed from, is too large for its type."""
        partial = node.dtype if isinstance(node.structure, Scatter) else accumulator_dtype(node.dtype)
        largest, limits = torch.finfo(TORCH_DTYPES[node.dtype]).max, torch.finfo(TORCH_DTYPES[partial])
        return (value.isfinite() & (value.abs() > largest)) | (self.computing > limits.max * limits.eps)


def error_bounds(node: Node, operands: list[Value], value: torch.Tensor, rounded: torch.Tensor) -> ErrorBounds | None:
    """How large the errors of each element may be; None where the op makes none."""
    eps, tiny = resolution(node.dtype)
    inner = resolution(accumulator_dtype(node.dtype))[0]
    exact = value == (rounded if node.dtype.bits < 64 else value.float())  # f64 shows nobody what it rounds away
    if node.dtype.bits == 64 and isinstance(node.structure, Elementwise):  # but does not round what is chosen
        exact = exact | sum((value == o for o in operands), start=torch.zeros(()).bool())
    own = torch.where(~exact, eps * value.abs().clamp(min=tiny), torch.zeros(()).double())
    match node.structure:
        case Elementwise():
            return ErrorBounds(own, _formula_error(node, operands, value, inner))
        case Reduction(combine="add"):
            return ErrorBounds(own, _sum_error(node, operands, inner, _reduction_length(node)))
        case Reduction(combine="mul"):
            return ErrorBounds(own, _product_error(node, operands, value, inner, _reduction_length(node)))
        case ConstantLinear():
            _, matrix = node.structure.axis_and_matrix(node)
            absolute = replace(node, attrs={**node.attrs, "matrix": tuple(tuple(map(abs, row)) for row in matrix)})
            return ErrorBounds(own, _sum_error(absolute, operands, inner, len(matrix[0]) if matrix else 0))
        case Scan(combine="max" | "min"):
            return None
        case Scan(combine="add"):
            return ErrorBounds(own, _sum_error(node, operands, inner, node.shape[node.attrs["dim"]]))
        case Scan(combine="mul"):
            return ErrorBounds(own, _product_error(node, operands, value, inner, node.shape[node.attrs["dim"]]))
        case Scan():
            steps = node.shape[node.structure.axis(node).dim]
            size = inner * (2 + steps) * value.abs() + sum(
                4 * inner * x.abs() for x in operands if x.is_floating_point()
            )
            return ErrorBounds(own, torch.where(exact, 0.0, size))
        case Scatter():
            how = node.structure.combine(node)
            if how == "add":
                return ErrorBounds(own, _sum_error(node, operands, eps, operands[-1].numel() or 1))
            return ErrorBounds(own, eps * 8 * value.abs()) if how == "mul" else None
        case Generate():
            return ErrorBounds(own, torch.zeros(()).double())
    return None


def _formula_error(node: Node, operands: list[Value], value: torch.Tensor, eps: float) -> torch.Tensor:
    """The error of an elementwise formula of several steps: near the size of what its steps add up."""
    steps = [e.primitive for e in elementwise_expr(node).calls]
    hard = APPROXIMATED.intersection(steps)
    if not steps or (len(steps) == 1 and not hard):
        return torch.zeros(()).double()
    error = 2 * eps * value.abs()
    if "pow" in hard or (hard and node.dtype.bits == 64):  # exponents that are rounded first
        error = error + eps * value.abs() * value.abs().log().abs().nan_to_num(0.0, 0.0, 0.0)
    if hard and node.dtype.bits == 64:  # the reference is no more exact, except in what infinities lead to
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
    """The error of adding `count` terms up in any order; where some are infinite, of the others."""
    if is_unit_stride_3x3(node):
        return _winograd_error(node, operands, eps)
    floats = [o for o in operands if o.is_floating_point()]
    sizes = [o.abs().nan_to_num(0.0, 0.0) if o.is_floating_point() else o for o in operands]
    magnitude: Any = evaluate_node(node, sizes, torch.float64)
    weighted = isinstance(node.structure, Reduction) and len(operands) == 2  # and weights may be scaled first
    exact = not weighted and all(bool((o == o.round()).all()) for o in floats)
    size: torch.Tensor = magnitude * eps * (2 + 0.25 * count**0.5)
    size = (size * 8 if weighted else size) + torch.where(magnitude > 0, count * _smallest_increment(node) / 2, 0.0)
    return torch.where((magnitude * eps < 0.5) & exact, torch.zeros(()).double(), size)


def _smallest_increment(node: Node) -> float:
    """The smallest number, of which what is added up is a multiple, products rounded to one."""
    eps, tiny = resolution(accumulator_dtype(node.dtype))
    return eps * tiny


def _winograd_error(node: Node, operands: list[Value], eps: float) -> torch.Tensor:
    """The error of a convolution that may be computed by fewer multiplications, from whole tiles: what is large or infinite
    there spoils all results of the tile."""
    reach = max(INTERPOLATION_POINTS) + 1
    x, w = (o.abs().nan_to_num(torch.inf, torch.inf).clamp(min=1e-300) for o in operands)
    images = x.flatten(0, -3)
    near = F.max_pool2d(images, 2 * reach + 1, 1, reach).view_as(x) if x.numel() else x
    magnitude: Any = evaluate_node(node, [near, w], torch.float64)
    size: torch.Tensor = magnitude * eps * 8 * (2 + 0.25 * _reduction_length(node) ** 0.5)
    return size


def _product_error(node: Node, operands: list[Value], value: torch.Tensor, eps: float, count: int) -> torch.Tensor:
    """The error of multiplying `count` factors in any order: infinite where a part of them may leave the range, but others lead back."""
    size = (2 + count) * eps * value.abs().nan_to_num(0.0, 0.0)
    if not node.dtype.is_float:
        return size
    finite = [x.abs().nan_to_num(1.0, 1.0) for x in operands]
    growth: Any = evaluate_node(node, [x.clamp(min=1.0) for x in finite], torch.float64)
    decline: Any = evaluate_node(node, [x.where(x > 0, 1.0).clamp(max=1.0) for x in finite], torch.float64)
    narrow = torch.finfo(TORCH_DTYPES[accumulator_dtype(node.dtype)])
    over, under = growth > narrow.max, decline < narrow.smallest_normal
    leaves = (over & ((decline < 1) | (value == 0))) | (under & ((growth > 1) | value.isinf()))
    return torch.where(leaves, torch.inf, size)
