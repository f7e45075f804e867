"""Storing through views that leave elements out: loops are split where elements begin or cease to be stored.

%y = slice (reshape (mix %x)) {dim=0, size=7}         four elements of %y to each step of the loop, the last of them left out
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
"""The indices of an element in those dimensions that no loop walks."""


@dataclass(frozen=True)
class StoreDomain:
    """Some steps of every loop, `sizes` of them from `low` on, and the points of each step that are stored."""

    start: Position
    extents: tuple[Dim, ...]
    points: tuple[UnrolledPoint, ...]


def position_in_view(node: Node, index: Position) -> Position | None:
    """Where element `index` of a view's operand goes in the view; None where that is not known."""
    s = node.structure
    return s.inverse(node, index) if isinstance(s, IndexMap) and s.inverse is not None else None


def is_invertible_view(node: Node) -> bool:
    """Whether the elements of its operand can be stored through `node`, some left out perhaps."""
    return (
        isinstance(node.structure, IndexMap) and position_in_view(node, (0,) * node.operands[0].type.rank) is not None
    )


def is_bijective_view(node: Node) -> bool:
    """Whether the view `node` leaves no element of its operand out."""
    return node.type.numel == node.operands[0].type.numel


def map_through_views(chain: Sequence[Node], index: Position, bounds: Bounds) -> tuple[Position, list[Guard]]:
    """Where element `index` of the last node of a chain of views and elementwise ops lies in the first, and when it is there."""
    guards: list[Guard] = []
    for node in reversed(chain[:-1]):
        place = position_in_view(node, index)
        if place is not None:
            index = tuple(simplify(d, bounds) for d in place)
            guards += (
                [] if is_bijective_view(node) else [Guard(d, 0, n) for d, n in zip(index, node.shape, strict=True)]
            )
    return index, guards


def split_store_domain(
    chain: Sequence[Node],
    extents: Sequence[Dim],
    points: Sequence[UnrolledPoint],
    extra_split_points: Mapping[int, Set[Dim]],
) -> list[StoreDomain]:
    """Loops over `extents`, each step of which yields `points` of the chain's last node, as loops that store the same ones throughout.

    They are split at `places` of each loop as well.  LowerError where the loops alone do not decide what is left out.
    """
    views = [n for n in chain[:-1] if isinstance(n.structure, IndexMap)]
    if all(map(is_bijective_view, views)) and not any(extra_split_points.values()):
        return [StoreDomain((0,) * len(extents), tuple(extents), tuple(points))]
    index = tuple(var(f"i{d}") for d in range(len(extents)))
    bounds: Bounds = {f"i{d}": (0, n - 1) for d, n in enumerate(extents)}
    point_guards = [map_through_views(chain, with_unrolled_dims(point, index), bounds)[1] for point in points]
    stops = [
        {c for g in itertools.chain(*point_guards) for c in guard_interval(g, f"i{d}")} for d in range(len(extents))
    ]
    cuts = [order_split_points(n, stops[d] | extra_split_points.get(d, set())) for d, n in enumerate(extents)]
    found = []
    for box in itertools.product(*map(itertools.pairwise, cuts)):
        here = {f"i{d}": ends for d, ends in enumerate(box)}
        stored = tuple(
            p for p, tests in zip(points, point_guards, strict=True) if all(guard_holds(g, here) for g in tests)
        )
        if stored:
            found.append(StoreDomain(tuple(low for low, _ in box), tuple(high - low for low, high in box), stored))
    return found


def order_split_points(extent: Dim, points: Set[Dim]) -> Sequence[Dim]:
    """The ends of a loop and the places inside it in order; LowerError where it is open which comes first."""
    found: Sequence[Dim] = (0, extent)
    for c in points:
        if (more := insert_split_point(found, c)) is None:
            raise LoweringError(f"what a loop of {extent} steps leaves out is not known")
        found = more
    return found


def insert_split_point(ends: Sequence[Dim], point: Dim) -> Sequence[Dim] | None:
    """The ends of the parts of a loop in order with one more, if it lies inside; None where it is open whether it does, or where."""
    if is_provably_at_most(point, ends[0]) or is_provably_at_most(ends[-1], point):
        return ends
    before = [is_provably_at_most(end, point) for end in ends]
    k = before.index(False) if False in before else 0
    if k == 0 or not all(is_provably_at_most(point, end) for end in ends[k:]):
        return None
    return ends if is_provably_at_most(point, ends[k - 1]) else (*ends[:k], point, *ends[k:])


def with_unrolled_dims(point: UnrolledPoint, index: Position) -> Position:
    """`index` with the dimensions that `point` gives."""
    return tuple(point.get(d, i) for d, i in enumerate(index))


def guard_interval(g: Guard, v: str) -> tuple[Dim, ...]:
    """The values of `v` from which on `g` holds, and no longer does."""
    if v not in variables(g.index):
        return ()
    step = coefficient(g.index, v)
    if step is None or step < 1 or len(variables(g.index)) > 1:
        raise LoweringError(f"no loop alone decides whether element {g.index} is left out")
    first = substitute(g.index, {v: 0})
    return ceildiv(g.low - first, step), ceildiv(g.high - first, step)


def guard_holds(g: Guard, loop_intervals: Mapping[str, tuple[Dim, Dim]]) -> bool:
    """Whether the guard holds everywhere in a part, or else nowhere; LowerError where that is open."""
    (v,) = variables(g.index) or ("",)
    low, high = loop_intervals.get(v, (0, 1))
    first, last = guard_interval(g, v) or (g.low - g.index, g.high - g.index)
    if is_provably_at_most(first, low) and is_provably_at_most(high, last):
        return True
    if is_provably_at_most(high, first) or is_provably_at_most(last, low):
        return False
    raise LoweringError(f"whether element {g.index} is left out is not known")
