"""Stores through views that crop: loops are split where elements start or stop being stored, so that no guard remains.

%y = slice (reshape (constant-linear %x)) {dim=0, size=7}     four elements of %y per iteration, the last of them cropped
->  for %i in 0..1 { store %y[4*%i] .. store %y[4*%i + 3] }     store %y[4] .. store %y[6]
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from compiler.analysis.index_sets import guard_holds, guard_interval, order_split_points
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Guard, IndexMap, Position, index_vars
from compiler.ir.symbolic.index_expr import Bounds, Dim, simplify

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
    index = index_vars("i", len(extents))
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


def with_unrolled_dims(point: UnrolledPoint, index: Position) -> Position:
    """Return `index` with the unrolled dimensions set to those of `point`."""
    return tuple(point.get(d, i) for d, i in enumerate(index))
