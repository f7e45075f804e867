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

from compiler.fuzz.inputs import Array
from compiler.ir.graph import CONSTANT, INPUT, Graph, Node
from compiler.ir.index import evaluate
from compiler.ir.interpret_graph import compute
from compiler.ir.interpret_structure import evaluate_structure
from compiler.ir.ops.recurrence import run_steps
from compiler.ir.scalar import APPROXIMATED
from compiler.ir.structure import (
    Elementwise,
    Gather,
    Generate,
    IndexMap,
    Mix,
    Recurrence,
    Reduction,
    Scan,
    Scatter,
    formula,
)
from compiler.ir.tile import accumulator_dtype
from compiler.ir.torch_types import TORCH_DTYPES, as_array, as_tensor
from compiler.ir.types import DType
from compiler.passes.graph.winograd import POINTS, is_plain
from compiler.passes.manager import run_pipeline

Value: TypeAlias = Any
"""A tensor, or a tuple of tensors."""

SLACK = 4.0
"""How many times the distance between worlds an answer may be off."""

TWICE = 0.25
"""How often a use sees another world's value."""


@dataclass(frozen=True)
class World:
    """What one world draws its errors from, how many times the usual size they have, whether what is too large for its type is
    kept as it is, and the values of the world before it."""

    rng: np.random.Generator
    size: float = 1.0
    wide: bool = False
    before: Mapping[Node, Value] = field(default_factory=dict)

    def seen(self, node: Node, value: Value) -> Value:
        """`value`, or what the world before has for `node`."""
        return self.before[node] if node in self.before and self.rng.random() < TWICE else value


@dataclass(frozen=True)
class Expectation:
    """What output number `k` may be: near `value` within `error`; infinite errors mean that anything may be there."""

    value: Array
    error: Array
    kinds: tuple[Array, ...]

    @classmethod
    def anything(cls, value: Array) -> Expectation:
        return cls(value, np.full(value.shape, np.inf), ())

    def problem(self, got: Array) -> str:
        """What is wrong with `got`; nothing where it is as expected."""
        if got.shape != self.value.shape:
            return f"the result has shape {list(got.shape)} instead of {list(self.value.shape)}"
        with np.errstate(all="ignore"):
            if got.dtype.kind != "f":
                bad = (got != self.value) & (self.error == 0)
            else:
                near = np.abs(got.astype(np.float64) - self.value) <= self.error
                same = near | ((got == self.value) & ~np.isfinite(self.value))
                other = np.any([kind(got) == k for k in self.kinds], axis=0) & ~(
                    np.isfinite(got) & np.isfinite(self.value)
                )
                bad = ~(same | other | np.isinf(self.error))
        if not bad.any():
            return ""
        place = tuple(int(d) for d in np.argwhere(bad)[0])
        allowed = f" within {self.error[place]:.3g}" if got.dtype.kind == "f" else ""
        return f"{int(bad.sum())} of {bad.size} elements are wrong; element {list(place)} is {got[place]!r} instead of {self.value[place]!r}{allowed}"

    @property
    def certain(self) -> int:
        """How many elements are held to something."""
        return int(np.isfinite(self.error).sum()) if self.value.dtype.kind == "f" else int((self.error == 0).sum())


def kind(array: Array) -> Array:
    """What sort of number stands where: 0 finite, 1 and -1 infinite, 2 NaN."""
    code = np.zeros(array.shape, np.int8)
    code[np.isposinf(array)], code[np.isneginf(array)], code[np.isnan(array)] = 1, -1, 2
    return code


def expectations(graph: Graph, inputs: Sequence[Array], seed: int = 0, worlds: int = 5) -> list[Expectation]:
    """What each output of a graph without symbols may be for `inputs`; anything where rounding decides whether an index is in range."""
    decomposed = run_pipeline(graph, "decompose")
    truth, plain = run(graph, inputs, None, rounded=False), run(graph, inputs, None)
    shaken = _shaken_runs(graph, inputs, seed, 1 + worlds // 8)
    first = run(decomposed, inputs, None)
    usual: list[dict[Node, Value]] = [first]
    large: list[dict[Node, Value]] = []
    for k in range(worlds):
        # what bends, as a sine at its top, is not as many times off as the error is larger
        size = SLACK if k % 3 == 2 else 1.0
        try:
            seen = run(decomposed, inputs, World(np.random.default_rng((seed, k)), size, k % 4 == 1, usual[-1]))
        except IndexError:
            return [Expectation.anything(as_array(truth[n])) for n in graph.outputs]
        (usual if size == 1.0 else large).append(seen)
    return [
        _expected(n, truth[n], [t[n] for t in shaken], [w[o] for w in usual], [w[o] for w in large], plain[n])
        for n, o in zip(graph.outputs, decomposed.outputs, strict=True)
    ]


def _expected(
    node: Node,
    truth: torch.Tensor,
    shaken: Sequence[torch.Tensor],
    usual: Sequence[torch.Tensor],
    large: Sequence[torch.Tensor],
    plain: torch.Tensor,
) -> Expectation:
    """What may come of `node`, by worlds with errors of the usual size, the first one with none, and by some with larger ones;
    `shaken` is the truth with float64's own errors."""
    seen = np.stack([as_array(w) for w in (*usual, *large)])
    first = seen[0]
    if not node.dtype.is_float:
        certain = np.all(seen == first, axis=0) & (as_array(plain) == first)
        return Expectation(first, np.where(certain, 0.0, np.inf), ())
    true, own = as_array(truth), as_array(plain)
    with np.errstate(all="ignore"):
        fine = 1e-13 * np.max(np.abs(true[np.isfinite(true)]), initial=1.0)  # what float64 itself rounds away
        fine = np.max([np.nan_to_num(16 * np.abs(as_array(s) - true)) for s in shaken], axis=0, initial=fine)
        off = np.abs(seen - first)
        off[len(usual) :] /= SLACK
        spread = np.max(off, axis=0, initial=0.0)
        apart = np.abs(own - first)
        eps, tiny = resolution(node.dtype)
        error = (
            SLACK * (spread + np.where(apart <= 64 * (spread + eps * np.abs(first)), apart, 0))
            + 4 * eps * np.abs(true)
            + 8 * tiny * eps
        )
        aside = np.abs(true - first)  # what is near the first world is as good as what is near the truth
        error = error + np.where(aside <= np.maximum(error, fine), aside, 0)
    kinds = (kind(true), kind(own), *(kind(w) for w in seen))
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


def run(graph: Graph, inputs: Sequence[Array], world: World | None, rounded: bool = True) -> dict[Node, Value]:
    """Every value in float64 (integers as they are), rounded to its type, with the errors of `world` if there is one."""
    given = [widened(as_tensor(x, n.dtype)) for n, x in zip(graph.inputs, inputs, strict=True)]
    return _run(graph, given, world, rounded)


def _run(graph: Graph, given: Sequence[Value], world: World | None, rounded: bool) -> dict[Node, Value]:
    known: dict[Node, Value] = dict(zip(graph.inputs, given, strict=True))
    for node in graph.nodes:
        if node in known:
            continue
        operands = [world.seen(o, known[o]) if world else known[o] for o in node.operands]
        if world and not rounded:
            operands = [_shaken(o, world.rng) for o in operands]
        if isinstance(node.structure, Recurrence):
            within = replace(world, before={}) if world else None
            steps = run_steps(node, operands, partial(_outputs, node.attrs["body"], within, rounded), _stacked)
            known[node] = steps if isinstance(node.result, tuple) else steps[0]
            continue
        value = computed(node, operands)
        if rounded and node.op not in (CONSTANT, INPUT):
            value = _erring(node, operands, value, world)
        known[node] = value
    return known


def _shaken_runs(graph: Graph, inputs: Sequence[Array], seed: int, count: int) -> list[dict[Node, Value]]:
    """The truth with the errors that float64 makes; nothing where they lead out of range."""
    worlds = (World(np.random.default_rng((seed, k))) for k in range(count))
    try:
        return [run(graph, inputs, w, rounded=False) for w in worlds]
    except IndexError:
        return []


def _shaken(value: Value, rng: np.random.Generator) -> Value:
    """`value` with the errors that float64 makes."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    return value * (1.0 + torch.finfo(torch.float64).eps * noise)


def _outputs(graph: Graph, world: World | None, rounded: bool, given: Sequence[Value]) -> list[Value]:
    known = _run(graph, given, world, rounded)
    return [known[n] for n in graph.outputs]


def _stacked(values: Sequence[Value]) -> Value:
    return torch.stack(list(values))


def computed(node: Node, operands: list[Value]) -> Value:
    """The value of `node` in float64: by its reference, or where that raises an error (a division by zero), by its structure."""
    if _may_trap(node, operands):
        return _by_structure(node, operands)
    try:
        return compute(node, operands, torch.float64)
    except (IndexError, RuntimeError):
        return _by_structure(node, operands)


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


def _by_structure(node: Node, operands: list[Value]) -> Value:
    arrays = [as_array(o).astype(n.dtype.numpy) for o, n in zip(operands, node.operands, strict=True)]
    return widened(as_tensor(evaluate_structure(node, arrays), node.dtype))


def widened(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _erring(node: Node, operands: list[Value], value: Value, world: World | None) -> Value:
    """`value` rounded to the type of `node`, after an error of the size that computing it may make."""
    if isinstance(value, tuple):
        types: Any = node.result
        return tuple(_round(v, t.dtype) for v, t in zip(value, types, strict=True))
    if not node.dtype.is_float:
        return value if world is None else _converted(node, operands, value, world.rng)
    if world is None:
        return _round(value, node.dtype)
    rng = world.rng
    if not isinstance(node.structure, IndexMap | Gather):
        value = _any_sign_of_nan(value, rng)
    if isinstance(node.structure, Reduction) and len(operands) == 2:
        value = _hidden_or_not(node, operands, value, rng)
    rounded = _round(value, node.dtype)
    errors = error_size(node, operands, value, rounded)
    if errors is None:
        return rounded
    usual = errors.rounding + errors.computing
    size = usual * world.size
    noise = torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(value.shape))))
    wild = torch.from_numpy(np.asarray(rng.choice([np.inf, -np.inf, np.nan, 1.0], tuple(value.shape))))
    erring = _round(value + torch.nan_to_num(noise * size, 0.0), node.dtype)
    often = rng.choice((TWICE, TWICE, 1.0))  # in some worlds, everywhere
    cancels = torch.from_numpy(np.asarray(rng.random(tuple(value.shape)) < often)) & (value.abs() <= usual)
    erring = torch.where(cancels, 0.0, erring)
    overflows = errors.overflow(node, value) & ~value.isnan()
    return torch.where(overflows, value if world.wide else wild, erring)


def _any_sign_of_nan(value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """IEEE 754 leaves open which sign arithmetic gives a NaN."""
    if not value.isnan().any():
        return value
    sign = torch.from_numpy(np.asarray(rng.choice([-1.0, 1.0], tuple(value.shape))))
    return torch.where(value.isnan(), torch.copysign(value, sign), value)


def _hidden_or_not(node: Node, operands: list[Value], value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """What is infinite may make NaN or be left out where it is multiplied by 0: by padding, or by one of the weights between 0 and 1
    that a softmax makes, which gives 0 to what is hidden."""
    if not value.isnan().any():
        return value
    weights, x = operands
    wild, wild_x = ~weights.isfinite(), ~x.isfinite()

    def anywhere(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Whether both hold at some point of each sum."""
        result: Any = compute(node, [a.double(), b.double()], torch.float64)
        holds: torch.Tensor = result > 0
        return holds

    counts = anywhere(weights != 0, x.isnan()) | anywhere(weights.isnan(), x != 0)
    if not _is_padded(node.operands[0]):
        slack = 16 * resolution(node.operands[0].dtype)[0]
        others = (weights < -slack) | (weights > 1 + slack)
        counts = counts | (anywhere(weights == 0, wild_x) & anywhere(others, torch.ones_like(x)))
    if not _is_padded(node.operands[1]):
        counts = counts | anywhere(wild, x == 0)
    left_out: Any = compute(node, [torch.where(wild, 0.0, weights), torch.where(wild_x, 0.0, x)], torch.float64)
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


def _converted(node: Node, operands: list[Value], value: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
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
class Errors:
    """How large the errors of each element may be: of rounding it to its type, and of computing it."""

    rounding: torch.Tensor
    computing: torch.Tensor

    def overflow(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        """Where `value`, or a part of what it is computed from, is too large for its type."""
        partial = node.dtype if isinstance(node.structure, Scatter) else accumulator_dtype(node.dtype)
        largest, limits = torch.finfo(TORCH_DTYPES[node.dtype]).max, torch.finfo(TORCH_DTYPES[partial])
        return (value.isfinite() & (value.abs() > largest)) | (self.computing > limits.max * limits.eps)


def error_size(node: Node, operands: list[Value], value: torch.Tensor, rounded: torch.Tensor) -> Errors | None:
    """How large the errors of each element may be; None where the op makes none."""
    eps, tiny = resolution(node.dtype)
    inner = resolution(accumulator_dtype(node.dtype))[0]
    exact = value == (rounded if node.dtype.bits < 64 else value.float())  # f64 shows nobody what it rounds away
    if node.dtype.bits == 64 and isinstance(node.structure, Elementwise):  # but does not round what is chosen
        exact = exact | sum((value == o for o in operands), start=torch.zeros(()).bool())
    own = torch.where(~exact, eps * value.abs().clamp(min=tiny), torch.zeros(()).double())
    match node.structure:
        case Elementwise():
            return Errors(own, _formula(node, operands, value, inner))
        case Reduction(combine="add"):
            return Errors(own, _sum(node, operands, inner, _points(node)))
        case Reduction(combine="mul"):
            return Errors(own, _product(node, operands, value, inner, _points(node)))
        case Mix():
            _, matrix = node.structure.along(node)
            absolute = replace(node, attrs={**node.attrs, "matrix": tuple(tuple(map(abs, row)) for row in matrix)})
            return Errors(own, _sum(absolute, operands, inner, len(matrix[0]) if matrix else 0))
        case Scan(combine="max" | "min"):
            return None
        case Scan(combine="add"):
            return Errors(own, _sum(node, operands, inner, node.shape[node.attrs["dim"]]))
        case Scan(combine="mul"):
            return Errors(own, _product(node, operands, value, inner, node.shape[node.attrs["dim"]]))
        case Scan():
            steps = node.shape[node.structure.along(node).dim]
            size = inner * (2 + steps) * value.abs() + sum(
                4 * inner * x.abs() for x in operands if x.is_floating_point()
            )
            return Errors(own, torch.where(exact, 0.0, size))
        case Scatter():
            how = node.structure.combine(node)
            if how == "add":
                return Errors(own, _sum(node, operands, eps, operands[-1].numel() or 1))
            return Errors(own, eps * 8 * value.abs()) if how == "mul" else None
        case Generate():
            return Errors(own, torch.zeros(()).double())
    return None


def _formula(node: Node, operands: list[Value], value: torch.Tensor, eps: float) -> torch.Tensor:
    """The error of an elementwise formula of several steps: near the size of what its steps add up."""
    steps = [e.primitive for e in formula(node).calls]
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


def _points(node: Node) -> int:
    assert isinstance(node.structure, Reduction)
    return int(np.prod([evaluate(d, {}) for d in node.structure.space(node).extents]))


def _sum(node: Node, operands: list[Value], eps: float, count: int) -> torch.Tensor:
    """The error of adding `count` terms up in any order; where some are infinite, of the others."""
    if is_plain(node):
        return _in_tiles(node, operands, eps)
    floats = [o for o in operands if o.is_floating_point()]
    sizes = [o.abs().nan_to_num(0.0, 0.0) if o.is_floating_point() else o for o in operands]
    magnitude: Any = compute(node, sizes, torch.float64)
    weighted = isinstance(node.structure, Reduction) and len(operands) == 2  # and weights may be scaled first
    exact = not weighted and all(bool((o == o.round()).all()) for o in floats)
    size: torch.Tensor = magnitude * eps * (2 + 0.25 * count**0.5)
    size = (size * 8 if weighted else size) + torch.where(magnitude > 0, count * _grid(node) / 2, 0.0)
    return torch.where((magnitude * eps < 0.5) & exact, torch.zeros(()).double(), size)


def _grid(node: Node) -> float:
    """The smallest number, of which what is added up is a multiple, products rounded to one."""
    eps, tiny = resolution(accumulator_dtype(node.dtype))
    return eps * tiny


def _in_tiles(node: Node, operands: list[Value], eps: float) -> torch.Tensor:
    """The error of a convolution that may be computed by fewer multiplications, from whole tiles: what is large or infinite
    there spoils all results of the tile."""
    reach = max(POINTS) + 1
    x, w = (o.abs().nan_to_num(torch.inf, torch.inf).clamp(min=1e-300) for o in operands)
    images = x.flatten(0, -3)
    near = F.max_pool2d(images, 2 * reach + 1, 1, reach).view_as(x) if x.numel() else x
    magnitude: Any = compute(node, [near, w], torch.float64)
    size: torch.Tensor = magnitude * eps * 8 * (2 + 0.25 * _points(node) ** 0.5)
    return size


def _product(node: Node, operands: list[Value], value: torch.Tensor, eps: float, count: int) -> torch.Tensor:
    """The error of multiplying `count` factors in any order: infinite where a part of them may leave the range, but others lead back."""
    size = (2 + count) * eps * value.abs().nan_to_num(0.0, 0.0)
    if not node.dtype.is_float:
        return size
    finite = [x.abs().nan_to_num(1.0, 1.0) for x in operands]
    growth: Any = compute(node, [x.clamp(min=1.0) for x in finite], torch.float64)
    decline: Any = compute(node, [x.where(x > 0, 1.0).clamp(max=1.0) for x in finite], torch.float64)
    narrow = torch.finfo(TORCH_DTYPES[accumulator_dtype(node.dtype)])
    over, under = growth > narrow.max, decline < narrow.smallest_normal
    leaves = (over & ((decline < 1) | (value == 0))) | (under & ((growth > 1) | value.isinf()))
    return torch.where(leaves, torch.inf, size)
