"""Index sets: where guards hold, against all points of small loops, and for sizes known when a kernel runs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from compiler.analysis.index_sets import (
    guard_holds,
    guard_interval,
    guard_never_holds,
    insert_split_point,
    order_split_points,
    provable_split_points,
    tighten_ranges,
)
from compiler.errors import LoweringError
from compiler.ir.graph.structure import Guard
from compiler.ir.symbolic.index_expr import Dim, dynamic_size, evaluate, var
from compiler.ir.tile.kernel import Range

P, Q, S = var("i"), var("j"), dynamic_size("s", 4, 20, 10)
SMALL = st.integers(-8, 8)
BOX = st.tuples(SMALL, st.integers(1, 6)).map(lambda start: (start[0], start[0] + start[1]))


@st.composite
def guards(draw: st.DrawFn) -> Guard:
    """A guard on an index that increases with %i."""
    return Guard(P * draw(st.integers(1, 4)) + draw(SMALL), draw(SMALL), draw(SMALL))


def holds(g: Guard, **point: int) -> bool:
    low, index, high = (evaluate(d, point) for d in (g.low, g.index, g.high))
    return low <= index < high


@given(guards())
def test_a_guard_holds_exactly_in_its_interval(g: Guard) -> None:
    first, end = guard_interval(g, "i")
    assert all(holds(g, i=i) == (first <= i < end) for i in range(-30, 30))


def test_the_interval_of_a_guard_may_depend_on_a_size() -> None:
    assert guard_interval(Guard(P * 2 - 3, 0, 10), "i") == (2, 7)
    assert guard_interval(Guard(P - 1, 0, S), "i") == (1, S + 1)
    assert guard_interval(Guard(P, 0, 10), "j") == ()


@pytest.mark.parametrize("index", [3 - P, P + Q, P // 2, P * S])
def test_a_guard_on_anything_but_an_increasing_index_has_no_interval(index: Dim) -> None:
    with pytest.raises(LoweringError, match="is not an increasing affine function of one loop"):
        guard_interval(Guard(index, 0, 10), "i")


@given(guards(), BOX)
def test_a_guard_holds_at_all_points_of_a_box_or_at_none_or_is_refused(g: Guard, box: tuple[int, int]) -> None:
    first, end = guard_interval(g, "i")
    assume(first < end)  # else it may be refused where it never holds
    answers = {holds(g, i=i) for i in range(*box)}
    if len(answers) == 1:
        assert {guard_holds(g, {"i": box})} == answers
    else:
        with pytest.raises(LoweringError, match="cannot prove whether"):
            guard_holds(g, {"i": box})


@pytest.mark.parametrize(
    ("g", "box", "expected"),
    [
        (Guard(P, 0, S), (0, S), True),
        (Guard(P, 0, S), (S, S + 3), False),
        (Guard(P, 5, S), (0, 4), False),
        (Guard(P + 2, 0, S), (0, S), None),
        (Guard(P, 0, 10), (0, S), None),
        (Guard(2, 0, 3), (0, S), True),  # of no loop
        (Guard(3, 0, 3), (0, S), False),
    ],
)
def test_a_guard_in_a_box_of_open_size(g: Guard, box: tuple[Dim, Dim], expected: bool | None) -> None:
    if expected is None:
        with pytest.raises(LoweringError, match="cannot prove whether"):
            guard_holds(g, {"i": box})
    else:
        assert guard_holds(g, {"i": box}) is expected


@given(SMALL, SMALL, SMALL, SMALL, SMALL, BOX, BOX)
def test_a_guard_that_never_holds_holds_at_no_point(
    a: int, b: int, c: int, low: int, high: int, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    g = Guard(P * a + Q * b + c, low, high)
    values = [evaluate(g.index, {"i": i, "j": j}) for i, j in product(range(*rows), range(*columns))]
    bounds = {"i": (rows[0], rows[1] - 1), "j": (columns[0], columns[1] - 1)}
    assert guard_never_holds(g, bounds) == (max(values) < low or min(values) >= high)


def test_a_guard_on_an_unbounded_index_may_hold() -> None:
    assert not guard_never_holds(Guard(P, 0, 3), {})
    assert guard_never_holds(Guard(P + S, 0, 4), {"i": (0, 5)})
    assert not guard_never_holds(Guard(P + S, 0, 5), {"i": (0, 5)})


@given(st.lists(guards(), max_size=3), BOX)
def test_tightened_ranges_keep_the_points_from_the_first_to_the_last_that_may_pass(
    tests: list[Guard], box: tuple[int, int]
) -> None:
    passing = [i for i in range(*box) if all(holds(g, i=i) for g in tests)]
    (r,) = tighten_ranges([Range("i", *box, unroll=2)], tests, {})
    assert (r.lo, r.hi) == ((passing[0], passing[-1] + 1) if passing else (box[0], box[0]))
    assert (r.var, r.unroll) == ("i", 2)


def test_ranges_are_tightened_for_all_values_of_what_is_around_them() -> None:
    window, open_range = Guard(P + Q, 2, 9), Range("j", 0, S)
    assert tighten_ranges([Range("i", 0, 20)], [window], {"j": (0, 3)}) == [Range("i", 0, 9)]
    assert tighten_ranges([Range("i", 0, 20)], [window], {"j": (0, 0)}) == [Range("i", 2, 9)]
    assert tighten_ranges([Range("i", 0, 20), Range("j", 0, 9)], [window], {}) == [Range("i", 0, 9), Range("j", 0, 9)]
    assert tighten_ranges([open_range], [Guard(Q, 2, 3)], {}) == [open_range]


@given(st.integers(0, 12), st.frozensets(SMALL))
def test_split_points_of_a_loop_are_those_inside_in_order(extent: int, points: frozenset[int]) -> None:
    inside = sorted(p for p in points if 0 < p < extent)
    assert order_split_points(extent, points) == (0, *inside, extent)
    assert provable_split_points(extent, points) == {*inside}


def test_split_points_of_open_order() -> None:
    assert order_split_points(S, {S - 1, 1, S + 2, 0}) == (0, 1, S - 1, S)
    assert provable_split_points(S, {1, S - 1, 5, S + 2}) == {1, S - 1}
    assert provable_split_points(S, {4, S - 1}) == {4}
    with pytest.raises(LoweringError, match="cannot order the split points of a loop of"):
        order_split_points(S, {5})


def test_a_split_point_is_inserted_once_where_its_place_is_known() -> None:
    assert insert_split_point((0, 3, 8), 5) == (0, 3, 5, 8)
    assert insert_split_point((0, 3, 8), 3) == (0, 3, 8)
    assert insert_split_point((0, 3, 8), 9) == (0, 3, 8)
    assert insert_split_point((0, S), 5) is None
