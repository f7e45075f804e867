"""Index-set splitting: where along a loop a guard starts or stops holding, so that no part of the loop needs it.

    0 <= 2*%i - 3 < 10    ->    holds for %i in 2..7    ->    a loop over 0..9 splits into 0..2, 2..7, 7..9

Four users split by it: lowering of views that crop (store_domains) and of reductions over windows (reduction_domains),
and the passes `eliminate-padding` and `tighten-reductions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from compiler.errors import LoweringError
from compiler.ir.graph.structure import Guard
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.bounds import is_provably_at_most
from compiler.ir.symbolic.index_expr import Bounds, Dim, ceildiv, interval, substitute, variables
from compiler.ir.tile.kernel import Range


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


def guard_never_holds(g: Guard, bounds: Bounds) -> bool:
    """Return True if the guard provably fails everywhere within `bounds`."""
    low, high = interval(g.index - g.low, bounds), interval(g.index - g.high, bounds)
    return (low is not None and low[1] < 0) or (high is not None and high[0] >= 0)


def tighten_ranges(ranges: Sequence[Range], tests: Sequence[Guard], bounds: Bounds) -> list[Range]:
    """Return `ranges` without the indices at either end for which a guard of `tests` fails everywhere in `bounds`."""
    tightened = list(ranges)
    for k, r in enumerate(tightened):
        own = [g for g in tests if r.var in variables(g.index)]
        if not own or not isinstance(r.lo, int) or not isinstance(r.hi, int):
            continue
        around: Bounds = {**bounds, **{x.var: (x.lo, x.hi - 1) for x in tightened}}
        points = [p for p in range(r.lo, r.hi) if not any(guard_never_holds(g, {**around, r.var: (p, p)}) for g in own)]
        tightened[k] = r.with_(lo=points[0], hi=points[-1] + 1) if points else r.with_(hi=r.lo)
    return tightened


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


def provable_split_points(extent: Dim, points: Set[Dim]) -> set[Dim]:
    """Return those points that provably lie inside 0..`extent` and are provably ordered, for all dynamic sizes."""
    ends: Sequence[Dim] = (0, extent)
    for point in sorted(points, key=str):
        ends = insert_split_point(ends, point) or ends
    return set(ends[1:-1])
