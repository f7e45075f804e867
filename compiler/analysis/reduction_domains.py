"""Index-set splitting for guarded reductions: loops are split where a guard changes, so that no guard remains.

%y = conv %x, %w {before=[2], after=[2]}     eight results, a window of three taps with dilation 2
->  for %i in 0..2 { reduce %r in 1..3 }     for %i in 0..4 { reduce %r in 0..3 }     for %i in 0..2 { reduce %r in 0..2 }
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import pairwise
from math import prod

from compiler.analysis.demand import Demand
from compiler.analysis.index_sets import guard_interval, order_split_points, provable_split_points
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Guard, Position, Reduction, Scan, index_vars
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.bounds import bounds_of_expr, is_provably_at_most, is_provably_less
from compiler.ir.symbolic.index_expr import Bounds, Dim, substitute, var, variables
from compiler.ir.tile.kernel import dim_hint


def split_points(graph: Graph, root: Node, max_parts: int) -> dict[int, set[Dim]]:
    """Return, per dimension of `root`, the indices at which the domain of a reduction of the group changes.

    Where they make more than `max_parts` parts, the outer dimensions keep the ends of their longest part alone: the other
    parts have guards.
    """
    index, points = index_vars("i", root.type.rank), dict[int, set[Dim]]()
    dims = {f"i{k}": k for k in range(root.type.rank)}
    reductions = [n for n in graph.nodes if isinstance(n.structure, Reduction)]
    guarded = [n for n in reductions if reduction_guards(n, index_vars("i", n.type.rank))]
    if not guarded or any(isinstance(n.structure, Scan) for n in graph.nodes):
        return points  # the loop of a scan runs from end to end and cannot be split
    demand = Demand(graph, root, index)
    guards = ((n, g) for n in guarded for r in demand.requests.get(n, ()) for g in reduction_guards(n, r.index))
    for n, guard in guards:
        for v, ends in change_points(guard, reduction_extents(n)):
            if v in dims:
                points.setdefault(dims[v], set()).update(ends)
    points = {k: provable_split_points(root.shape[k], ends) for k, ends in points.items()}
    for k in sorted(points):
        if prod(len(ends) + 1 for ends in points.values()) <= max_parts:
            break
        points[k] = ends_of_longest_part(root.shape[k], points[k])
    return points


def ends_of_longest_part(extent: Dim, points: Set[Dim]) -> set[Dim]:
    """Return those of the ordered `points` between which a loop over `extent` has the most indices."""
    parts = pairwise(order_split_points(extent, points))
    return {*max(parts, key=lambda part: dim_hint(part[1] - part[0]))} & points


def change_points(g: Guard, points: Mapping[str, Dim]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
    """Yield the outer loop of a guard and the interval of its indices where the guard holds, per reduction index.

    `points` gives the extents of the reduction's variables.  The guard may use one outer loop and one of these.
    """
    inner = variables(g.index) & points.keys()
    outer = variables(g.index) - inner
    if len(outer) != 1 or len(inner) > 1 or (coefficient(g.index, *outer) or 0) < 1:
        return
    (v,) = outer
    for r in inner or {""}:
        extent = points.get(r, 1)
        for k in range(extent if isinstance(extent, int) else 0):
            yield v, guard_interval(Guard(substitute(g.index, {r: k}), g.low, g.high), v)


def reduction_guards(n: Node, index: Position) -> tuple[Guard, ...]:
    """Return the guards under which a reduction index contributes to element `index` of reduction `n`."""
    assert isinstance(n.structure, Reduction)
    return n.structure.domain(n).guards(index, tuple(var(v) for v in reduction_extents(n)))


def reduction_extents(n: Node) -> dict[str, Dim]:
    """Return the extents of reduction `n` by the variable names that `reduction_guards` uses."""
    assert isinstance(n.structure, Reduction)
    return {f"r{k}": size for k, size in enumerate(n.structure.domain(n).extents)}


def is_never_empty(n: Node) -> bool:
    """Return True if every element of reduction `n` has a reduction index for which all guards hold, as far as bounds show.

    That is so if the first index lies below the end of each guard, the last not below its start, and no step leaps over it.
    """
    extents, index = reduction_extents(n), index_vars("i", n.type.rank)
    bounds: Bounds = {f"i{k}": (0, size - 1) for k, size in enumerate(n.shape)}
    guards = reduction_guards(n, index)
    inner = [variables(g.index) & extents.keys() for g in guards]
    if any(len(names) > 1 for names in inner) or sum(map(len, inner)) > len(frozenset().union(*inner)):
        return False

    def holds_somewhere(g: Guard, names: Iterable[str]) -> bool:
        first, last = (substitute(g.index, {r: end * (extents[r] - 1) for r in names}) for end in (0, 1))
        lowest, highest = bounds_of_expr(last, bounds), bounds_of_expr(first, bounds)
        steps = [coefficient(g.index, r) or 0 for r in names]
        return (
            lowest is not None
            and highest is not None
            and is_provably_at_most(g.low, lowest[0])
            and is_provably_less(highest[1], g.high)
            and all(step > 0 and is_provably_at_most(step, g.high - g.low) for step in steps)
        )

    return all(map(holds_somewhere, guards, inner))


def reads_once(n: Node, rows: int = 1) -> bool:
    """Return True if a contraction reads each element of its largest operand once, for `rows` rows together.

    A vector times a matrix does, and so do a few rows that one register tile holds.
    """
    products = prod(map(dim_hint, (*n.shape, *reduction_extents(n).values())))
    return products <= rows * max(prod(map(dim_hint, o.shape)) for o in n.operands)
