"""Stores through views that crop: loops are split where elements start or stop being stored, so that no guard remains.

%y = slice (reshape (constant-linear %x)) {dim=0, size=7}     four elements of %y per iteration, the last of them cropped
->  for %i in 0..1 { store %y[4*%i] .. store %y[4*%i + 3] }     store %y[4] .. store %y[6]
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from compiler.errors import LoweringError
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Guard, IndexMap, Position
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.bounds import is_provably_at_most
from compiler.ir.symbolic.index_expr import Bounds, Dim, ceildiv, simplify, substitute, var, variables

UnrolledPoint: TypeAlias = Mapping[int, int]
"""Indices of an element in the unrolled dimensions, by dimension."""


@dataclass(frozen=True)
class StoreDomain:
    """A box of loop iterations, `extents` from `start` on, in each of which the same unrolled `points` are stored."""

    start: Position
    extents: tuple[Dim, ...]
    points: tuple[UnrolledPoint, ...]


def position_in_view(node: Node, index: Position) -> Position | None:
    """Return the position in view `node` of element `index` of its operand, or None if the view has no inverse."""
    s = node.structure
    return s.inverse(node, index) if isinstance(s, IndexMap) and s.inverse is not None else None


def is_invertible_view(node: Node) -> bool:
    """Return True if a producer can store its elements through view `node`, which may crop some of them."""
    return isinstance(node.structure, IndexMap) and (
        position_in_view(node, (0,) * node.operands[0].type.rank) is not None
    )


def is_bijective_view(node: Node) -> bool:
    """Return True if view `node` contains every element of its operand."""
    return node.type.numel == node.operands[0].type.numel


def map_through_views(chain: Sequence[Node], index: Position, bounds: Bounds) -> tuple[Position, list[Guard]]:
    """Map element `index` of the last node of `chain` to the first; the guards hold if no view crops it.

    `chain` lists views and elementwise ops from consumer to producer.
    """
    guards: list[Guard] = []
    for node in reversed(chain[:-1]):
        position = position_in_view(node, index)
        if position is not None:
            index = tuple(simplify(d, bounds) for d in position)
            if not is_bijective_view(node):
                guards += [Guard(d, 0, n) for d, n in zip(index, node.shape, strict=True)]
    return index, guards


def split_store_domain(
    chain: Sequence[Node],
    extents: Sequence[Dim],
    points: Sequence[UnrolledPoint],
    extra_split_points: Mapping[int, Set[Dim]],
) -> list[StoreDomain]:
    """Split loops over `extents` into domains in each of which the same points are stored.

    Each iteration computes `points` of the last node of `chain`.  Loop `d` is also split at `extra_split_points[d]`.
    Raises LoweringError if a guard depends on several loops or the order of split points is unknown.
    """
    views = [n for n in chain[:-1] if isinstance(n.structure, IndexMap)]
    if all(map(is_bijective_view, views)) and not any(extra_split_points.values()):
        return [StoreDomain((0,) * len(extents), tuple(extents), tuple(points))]
    index = tuple(var(f"i{d}") for d in range(len(extents)))
    bounds: Bounds = {f"i{d}": (0, n - 1) for d, n in enumerate(extents)}
    point_guards = [map_through_views(chain, with_unrolled_dims(point, index), bounds)[1] for point in points]
    guards = list(itertools.chain(*point_guards))
    splits = [{c for g in guards for c in guard_interval(g, f"i{d}")} for d in range(len(extents))]
    cuts = [order_split_points(n, splits[d] | extra_split_points.get(d, set())) for d, n in enumerate(extents)]
    domains = []
    for box in itertools.product(*map(itertools.pairwise, cuts)):
        intervals = {f"i{d}": ends for d, ends in enumerate(box)}
        guarded = zip(points, point_guards, strict=True)
        stored = tuple(p for p, tests in guarded if all(guard_holds(g, intervals) for g in tests))
        if stored:
            domains.append(StoreDomain(tuple(low for low, _ in box), tuple(high - low for low, high in box), stored))
    return domains


def order_split_points(extent: Dim, points: Set[Dim]) -> Sequence[Dim]:
    """Return 0, the points inside the loop in order, and `extent`; LoweringError if their order is unknown."""
    ends: Sequence[Dim] = (0, extent)
    for c in points:
        extended = insert_split_point(ends, c)
        if extended is None:
            raise LoweringError(f"cannot order the split points of a loop of {extent} iterations")
        ends = extended
    return ends


def insert_split_point(ends: Sequence[Dim], point: Dim) -> Sequence[Dim] | None:
    """Insert `point` into the sorted `ends` unless it lies outside; None if its position cannot be proved."""
    if is_provably_at_most(point, ends[0]) or is_provably_at_most(ends[-1], point):
        return ends
    before = [is_provably_at_most(end, point) for end in ends]
    k = before.index(False) if False in before else 0
    if k == 0 or not all(is_provably_at_most(point, end) for end in ends[k:]):
        return None
    return ends if is_provably_at_most(point, ends[k - 1]) else (*ends[:k], point, *ends[k:])


def with_unrolled_dims(point: UnrolledPoint, index: Position) -> Position:
    """Return `index` with the unrolled dimensions set to those of `point`."""
    return tuple(point.get(d, i) for d, i in enumerate(index))


def guard_interval(g: Guard, v: str) -> tuple[Dim, ...]:
    """Return the first value of `v` for which `g` holds and the end of those values; empty if `g` does not use `v`.

    Raises LoweringError if `g` uses other variables too or does not increase with `v`.
    """
    if v not in variables(g.index):
        return ()
    step = coefficient(g.index, v)
    if step is None or step < 1 or len(variables(g.index)) > 1:
        raise LoweringError(f"the guard on {g.index} is not an increasing affine function of one loop")
    first = substitute(g.index, {v: 0})
    return ceildiv(g.low - first, step), ceildiv(g.high - first, step)


def guard_holds(g: Guard, loop_intervals: Mapping[str, tuple[Dim, Dim]]) -> bool:
    """Return True if the guard holds everywhere in a box, False if nowhere; LoweringError if it cannot be proved."""
    (v,) = variables(g.index) or ("",)
    low, high = loop_intervals.get(v, (0, 1))
    first, last = guard_interval(g, v) or (g.low - g.index, g.high - g.index)
    if is_provably_at_most(first, low) and is_provably_at_most(high, last):
        return True
    if is_provably_at_most(high, first) or is_provably_at_most(last, low):
        return False
    raise LoweringError(f"cannot prove whether the guard on {g.index} holds")
