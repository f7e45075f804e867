"""reorder: loops ordered by the strides of what they access."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.cost.machine import Machine
from compiler.testing.checks import check_pass


def transposed(first: str, second: str, value: str = "%x[%i, %j] + 1.0") -> str:
    return f"""kernel @k(in %x: f32[6, 8], out %y: f32[8, 6]) {{
      parallel {first} {{ parallel {second} {{ store {value}, %y[%j, %i] }} }} }}"""


def test_loops_follow_what_is_stored() -> None:
    i, j = "%i in 0..6", "%j in 0..8"
    first, then = (transposed(*p, value="%x[0, 0] + 1.0") for p in ((i, j), (j, i)))
    check_pass("reorder", before=first, after=then, remark="by output stride")
    check_pass("reorder", unchanged=then)


def test_loops_in_the_order_of_memory_become_one() -> None:
    head = "kernel @k(in %x: f32[9, 6], out %y: f32[9, 6])"
    check_pass(
        "reorder,collapse",
        before=f"{head} {{ parallel %i in 0..6 {{ parallel %j in 0..9 {{ store %x[%j, %i] * 2.0, %y[%j, %i] }} }} }}",
        after=f"{head} {{ parallel %i in 0..54 {{ store %x[%i//6, %i%6] * 2.0, %y[%i//6, %i%6] }} }}",
    )


def test_what_is_moved_is_walked_by_the_shorter_strides() -> None:
    """Innermost %j goes through %y by steps of 6, innermost %i through %x by steps of 8."""
    i, j = "%i in 0..6", "%j in 0..8"
    check_pass("reorder", before=transposed(j, i), after=transposed(i, j))
    check_pass("reorder", unchanged=transposed(i, j))


def test_lines_that_rows_share_are_read_while_they_are_near() -> None:
    """Rows of 6 end inside a line: the share holds 24 such lines until the next row is read, and 16 but not 36 are read before."""
    text = """
    kernel @turn(in %x: f32[C, 2, 6], out %y: f32[2, 6, C]) {
      parallel %c in 0..C { parallel %h in 0..2 { parallel %w in 0..6 { store %x[%c, %h, %w], %y[%h, %w, %c] } } }
    }"""
    follow = (
        "parallel %h in 0..2 { parallel %w in 0..6 { parallel %c in 0..C { store %x[%c, %h, %w], %y[%h, %w, %c] } } }"
    )
    share = "reorder{cache-fraction=0.03125}"
    check_pass(share, unchanged=text.replace("C", "36"))
    few = "kernel @turn(in %x: f32[C, 2, 6], out %y: f32[2, 6, C]) {" + follow + "}"
    check_pass(share, before=text.replace("C", "16"), after=few.replace("C", "16"))


def test_lines_of_long_rows_are_hardly_shared() -> None:
    """Rows of 20 end inside their second line and are kept whole; of rows of 40 few lines are, and short strides count."""
    text = """
    kernel @turn(in %x: f32[48, C], out %y: f32[C, 48]) {
      parallel %p in 0..48 { parallel %c in 0..C { store %x[%p, %c], %y[%c, %p] } }
    }"""
    turned = """
    kernel @turn(in %x: f32[48, C], out %y: f32[C, 48]) {
      parallel %c in 0..C { parallel %p in 0..48 { store %x[%p, %c], %y[%c, %p] } }
    }"""
    share = "reorder{cache-fraction=0.03125}"
    check_pass(share, unchanged=text.replace("C", "20"))
    check_pass(share, before=text.replace("C", "40"), after=turned.replace("C", "40"))


def test_a_reduction_is_no_move() -> None:
    check_pass(
        "reorder",
        unchanged="""kernel @k(in %x: f32[6, 2, 8], out %y: f32[8, 6]) {
      parallel %j in 0..8 { parallel %i in 0..6 {
        %s = reduce max %r in 0..2 { yield %x[%i, %r, %j] }
        store %s, %y[%j, %i] } } }""",
    )


def test_loops_follow_layouts() -> None:
    i, j = "%i in 0..6", "%j in 0..8"
    before, after = (transposed(*p).replace("f32[8, 6]", "f32[8, 6]{1, 0}") for p in ((j, i), (i, j)))
    check_pass("reorder", before=before, after=after)


def test_results_that_lie_differently_leave_the_loops() -> None:
    check_pass(
        "reorder",
        unchanged="""kernel @k(in %x: f32[6, 8], out %y: f32[8, 6], out %z: f32[6, 8]) {
      parallel %i in 0..6 { parallel %j in 0..8 { store %x[%i, %j], %y[%j, %i] store %x[%i, %j], %z[%i, %j] } } }""",
    )


def product(*loops: str) -> str:
    heads = " ".join(f"parallel {loop} {{" for loop in loops)
    return f"""kernel @k(in %x: f32[64, 2], const %w: f32[2, 32], out %y: f32[64, 32]) {{
      {heads} %s = reduce add %k in 0..2 {{ yield %x[%i, %k] * %w[%k, %j] }} store %s, %y[%i, %j] {"}" * len(loops)} }}"""


def test_results_of_short_sums_that_leave_the_cache_are_stored_row_by_row() -> None:
    """Others have panels outside, as `cache-blocking` has it."""
    columns, rows = product("%j in 0..32", "%i in 0..64"), product("%i in 0..64", "%j in 0..32")
    check_pass("reorder", before=columns, after=rows, machine=Machine(l2=4096), remark="by output stride")
    check_pass("reorder", unchanged=columns, machine=Machine(l2=8192))


def summed(ranges: str, read: str = "%x[%b, %a]", role: str = "in") -> str:
    return f"""kernel @k({role} %x: f32[4, 3], in %w: f32[3], out %y: f32[2]) {{
      parallel %i in 0..2 {{ %s = reduce add {ranges} {{ yield {read} * %w[%a] }} store %s, %y[%i] }} }}"""


def test_reductions_walk_memory_in_order() -> None:
    a, b = "%a in 0..3", "%b in 0..4"
    check_pass("reorder", before=summed(f"{a}, {b}"), after=summed(f"{b}, {a}"))
    check_pass("reorder", before=summed(f"{b}, {a}", "%x[%a, %b]").replace("4, 3", "3, 4"),
               after=summed(f"{a}, {b}", "%x[%a, %b]").replace("4, 3", "3, 4"))  # fmt: skip


def test_constants_and_divided_addresses_do_not_sort_a_reduction() -> None:
    a, b = "%a in 0..3", "%b in 0..4"
    check_pass("reorder", before=summed(f"{b}, {a}", role="const"), after=summed(f"{a}, {b}", role="const"))
    check_pass("reorder", unchanged=summed(f"{a}, {b}", "%x[%b//2, %a]"))


IMAGE, ROW, COLUMN, CHANNEL = "%n in 0..2", "%i in 0..4", "%j in 0..8", "%c in 0..5"
NEAR = Machine(l1=2 * 3 * 8 * 5 * 4)
"""Half of whose first-level cache just holds the three rows of all channels that `windows` reads between two steps of %i."""


def windows(loops: tuple[str, ...], row: str = "%i + %r", value: str = "* %w[%c, %r]", op: str = "add") -> str:
    heads = " ".join(f"parallel {loop} {{" for loop in loops)
    return f"""kernel @k(in %x: f32[2, 12, 8, 5], const %w: f32[5, 3], out %y: f32[2, 4, 8, 5]) {{
      {heads} %s = reduce {op} %r in 0..3 {{ yield %x[%n, {row}, %j, %c] {value} }} store %s, %y[%n, %i, %j, %c]
      {"}" * len(loops)} }}"""


@pytest.mark.parametrize(("value", "op"), [("* %w[%c, %r]", "add"), ("", "max")])
def test_channels_go_outside_windows_whose_rows_would_not_stay_near(value: str, op: str) -> None:
    """But not outside images, which share nothing; nor where the rows of all channels fit."""
    along, outside = ((IMAGE, ROW, COLUMN, CHANNEL), (IMAGE, CHANNEL, ROW, COLUMN))
    small = replace(NEAR, l1=NEAR.l1 - 2)
    first, near = windows(along, value=value, op=op), windows(outside, value=value, op=op)
    check_pass("reorder", before=first, after=near, machine=small, remark="overlapping windows stay in L1")
    check_pass("reorder", unchanged=near, machine=small)
    check_pass("reorder", unchanged=first, machine=NEAR)
    check_pass("reorder", before=near, after=first, machine=NEAR, remark="by output stride")


@pytest.mark.parametrize(("row", "shared"), [("%i*2 + %r", True), ("%i*3 + %r", False), ("%i + %r*2", True)])
def test_windows_that_share_no_row_follow_memory(row: str, shared: bool) -> None:
    along, outside = ((IMAGE, ROW, COLUMN, CHANNEL), (IMAGE, CHANNEL, ROW, COLUMN))
    ordered = outside if shared else along
    check_pass("reorder", unchanged=windows(ordered, row), machine=Machine(l1=16))


def test_a_row_of_windows_is_not_cut() -> None:
    """Windows overlap along the innermost loop as well: outside, each of its steps would begin a column."""
    text = """kernel @k(in %x: f32[6, 10], const %w: f32[3, 3], out %y: f32[4, 8]) {
      parallel %i in 0..4 { parallel %j in 0..8 {
        %s = reduce max %r in 0..3, %q in 0..3 { yield %x[%i + %r, %j + %q] } store %s, %y[%i, %j] } } }"""
    check_pass("reorder", unchanged=text, machine=Machine(l1=16))
