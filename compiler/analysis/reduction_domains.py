"""Points of a reduction that take no part in it: loops are split where other points begin to, so that no guard is left.

%y = conv %x, %w {before=[2], after=[2]}     eight results, windows of three taps two apart
->  for %i in 0..2 { reduce %r in 1..3 }     for %i in 0..4 { reduce %r in 0..3 }     for %i in 0..2 { reduce %r in 0..2 }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from compiler.analysis.demand import Demand
from compiler.analysis.store_domains import guard_interval, insert_split_point
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Guard, Position, Reduction, Scan
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval, substitute, var, variables
from compiler.ir.tile.kernel import Range


def split_points(graph: Graph, root: Node) -> dict[int, set[Dim]]:
    """Where along each dimension of the root, for whose elements a group's reductions are asked, the points that they add change."""
    index, found = index_vars("i", root.type.rank), dict[int, set[Dim]]()
    dims = {f"i{k}": k for k in range(root.type.rank)}
    guarded = [
        n
        for n in graph.nodes
        if isinstance(n.structure, Reduction) and reduction_guards(n, index_vars("i", n.type.rank))
    ]
    if not guarded or any(isinstance(n.structure, Scan) for n in graph.nodes):
        return found  # a scan walks its loop from end to end
    demand = Demand(graph, root, index)
    for n in guarded:
        for request in demand.requests.get(n, ()):
            for g in reduction_guards(n, request.index):
                for v, places in change_points(g, reduction_extents(n)):
                    if v in dims:
                        found.setdefault(dims[v], set()).update(places)
    return {k: provable_split_points(root.shape[k], places) for k, places in found.items()}


def provable_split_points(extent: Dim, points: Set[Dim]) -> set[Dim]:
    """Those places that certainly lie inside a loop of `extent`, one behind the other, whatever the sizes in them."""
    ends: Sequence[Dim] = (0, extent)
    for place in sorted(points, key=str):
        ends = insert_split_point(ends, place) or ends
    return set(ends[1:-1])


def change_points(g: Guard, points: Mapping[str, Dim]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
    """The loop that decides with one range of the reduction whether a guard holds, and where it does so anew for some point."""
    inside = variables(g.index) & points.keys()
    around = variables(g.index) - inside
    if len(around) != 1 or len(inside) > 1 or (coefficient(g.index, *around) or 0) < 1:
        return
    (v,) = around
    for r in inside or {""}:
        count = points.get(r, 1)
        for k in range(count if isinstance(count, int) else 0):
            yield v, guard_interval(Guard(substitute(g.index, {r: k}), g.low, g.high), v)


def reduction_guards(n: Node, index: Position) -> tuple[Guard, ...]:
    """What must hold for a point to take part in element `index` of a reduction."""
    assert isinstance(n.structure, Reduction)
    return n.structure.domain(n).guards(index, tuple(var(v) for v in reduction_extents(n)))


def reduction_extents(n: Node) -> dict[str, Dim]:
    """The ranges of a reduction under the names that `guards` gives them."""
    assert isinstance(n.structure, Reduction)
    return {f"r{k}": size for k, size in enumerate(n.structure.domain(n).extents)}


def index_vars(prefix: str, rank: int) -> Position:
    """One variable per dimension."""
    return tuple(var(f"{prefix}{k}") for k in range(rank))


def tighten_ranges(ranges: Sequence[Range], tests: Sequence[Guard], bounds: Bounds) -> list[Range]:
    """`ranges` without the points at either end for which a test fails wherever the loops around stand."""
    left = list(ranges)
    for k, r in enumerate(left):
        own = [g for g in tests if r.var in variables(g.index)]
        if not own or not isinstance(r.lo, int) or not isinstance(r.hi, int):
            continue
        around: Bounds = {**bounds, **{x.var: (x.lo, x.hi - 1) for x in left}}
        points = [p for p in range(r.lo, r.hi) if not any(guard_never_holds(g, {**around, r.var: (p, p)}) for g in own)]
        left[k] = r.with_(lo=points[0], hi=points[-1] + 1) if points else r.with_(hi=r.lo)
    return left


def guard_never_holds(g: Guard, bounds: Bounds) -> bool:
    """Whether the guard fails everywhere within `bounds`."""
    low, high = interval(g.index - g.low, bounds), interval(g.index - g.high, bounds)
    return (low is not None and low[1] < 0) or (high is not None and high[0] >= 0)
