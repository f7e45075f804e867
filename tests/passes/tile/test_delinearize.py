"""delinearize: loops whose index is divided in addresses."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

ROWS = """kernel @rows(in %x: f32[4, 2, 3], in %w: f32[3], out %y: f32[8]) {
  parallel %i in 0..8 { %s = reduce add %k in 0..3 { yield %x[%i//2, %i%2, %k] * %w[%k] } store %s, %y[%i] } }"""


def test_a_view_of_the_rows_becomes_a_loop_of_loops() -> None:
    check_pass(
        "delinearize",
        before=ROWS,
        after="""kernel @rows(in %x: f32[4, 2, 3], in %w: f32[3], out %y: f32[8]) {
          parallel %i in 0..4 { parallel %r in 0..2 {
            %s = reduce add %k in 0..3 { yield %x[%i, %r, %k] * %w[%k] } store %s, %y[%i*2 + %r] } } }""",
        remark="%i split by 2",
    )


def transposed(length: int, start: int = 1) -> str:
    return f"""kernel @up(in %x: f32[7], in %w: f32[4], out %y: f32[{length}]) {{
      parallel %i in 0..{length} {{
        %s = reduce add %t in 0..2 {{ yield %x[(%i + {start})//2 + %t] * %w[(%i + {start})%2 + 2*%t] }}
        store %s, %y[%i] }} }}"""


def phases(*parts: tuple[int, str, str, str]) -> str:
    loops = " ".join(
        f"parallel %i in 0..{n} {{ %s = reduce add %t in 0..2 {{ yield %x[{x}] * %w[{w}] }} store %s, %y[{y}] }}"
        for n, x, w, y in parts
    )
    length = sum(n for n, *_ in parts)
    return f"kernel @up(in %x: f32[7], in %w: f32[4], out %y: f32[{length}]) {{ {loops} }}"


def test_a_transposed_convolution_becomes_one_for_each_remainder() -> None:
    check_pass(
        "delinearize",
        before=transposed(8),
        after=phases((4, "%i + %t", "2*%t + 1", "2*%i"), (4, "%i + %t + 1", "2*%t", "2*%i + 1")),
    )


def test_remainders_with_equal_taps_share_a_loop() -> None:
    """A stride of 4 makes two copies, not four."""
    nest = """parallel %i in 0..2 {{ parallel %r in 0..2 {{
      %s = reduce add %t in 0..2 {{ yield %x[%i + %t{x}] * %w[4*%t + %r{w}] }} store %s, %y[4*%i + %r{y}] }} }}"""
    head = "kernel @up(in %x: f32[4], in %w: f32[8], out %y: f32[8])"
    check_pass(
        "delinearize",
        before=f"""{head} {{ parallel %i in 0..8 {{
          %s = reduce add %t in 0..2 {{ yield %x[(%i + 2)//4 + %t] * %w[(%i + 2)%4 + 4*%t] }} store %s, %y[%i] }} }}""",
        after=f"{head} {{ {nest.format(x='', w=' + 2', y='')} {nest.format(x=' + 1', w='', y=' + 2')} }}",
    )


def test_a_guard_on_the_remainder_takes_a_copy_for_each() -> None:
    """The sum of each then has no guard: `tighten-reductions`."""
    nest = """parallel %i in 0..2 {{
      %s = reduce add %t in 0..2 {{ yield where(index({m} - 4*%t) < 3, %x[%i + %t{x}] * %w[4*%t{w}], 0.0) }} store %s, %y[{y}] }}"""
    head = "kernel @up(in %x: f32[4], in %w: f32[8], out %y: f32[8])"
    parts = [
        (2, "", " + 2", "4*%i"),
        (3, "", " + 3", "4*%i + 1"),
        (0, " + 1", "", "4*%i + 2"),
        (1, " + 1", " + 1", "4*%i + 3"),
    ]
    check_pass(
        "delinearize",
        before=f"""{head} {{ parallel %i in 0..8 {{
          %s = reduce add %t in 0..2 {{
            yield where(index((%i + 2)%4 - 4*%t) < 3, %x[(%i + 2)//4 + %t] * %w[(%i + 2)%4 + 4*%t], 0.0) }}
          store %s, %y[%i] }} }}""",
        after=f"{head} {{ {' '.join(nest.format(m=m, x=x, w=w, y=y) for m, x, w, y in parts)} }}",
    )


def test_a_divided_remainder_is_split_again() -> None:
    """Rows of a repeated image that are one dimension of the result: no copies."""
    check_pass(
        "delinearize",
        before="""kernel @rows(in %x: f32[2, 4, 5], out %y: f32[16]) {
          parallel %i in 0..16 { %s = reduce add %k in 0..5 { yield %x[%i//8, (%i%8)//2, %k] } store %s, %y[%i] } }""",
        after="""kernel @rows(in %x: f32[2, 4, 5], out %y: f32[16]) {
          parallel %i in 0..2 { parallel %r in 0..4 { parallel %q in 0..2 {
            %s = reduce add %k in 0..5 { yield %x[%i, %r, %k] } store %s, %y[%i*8 + %r*2 + %q] } } } }""",
        remark="%i split by 8",
    )


def test_remainders_may_have_different_counts() -> None:
    check_pass(
        "delinearize",
        before=transposed(7, 0),
        after=phases((4, "%i + %t", "2*%t", "2*%i"), (3, "%i + %t", "2*%t + 1", "2*%i + 1")),
    )


def test_remainders_that_no_index_leaves_have_no_loop() -> None:
    check_pass("delinearize", before=transposed(1, 0), after=phases((1, "%i + %t", "2*%t", "2*%i")))


def test_sums_of_overlapping_windows_become_one_for_each_remainder() -> None:
    """Their lanes then read windows that are neighbours."""

    def kernel(loops: str) -> str:
        return f"kernel @up(in %x: f32[4, 6], out %y: f32[8]) {{ {loops} }}"

    def nest(count: int, tap: str, window: str, result: str) -> str:
        return f"""parallel %i in 0..{count} {{
          %s = reduce add %t in 0..2 {{ yield %x[{tap}, {window}] }} store %s, %y[{result}] }}"""

    check_pass(
        "delinearize",
        before=kernel(nest(8, "(%i + 1)%2 - 2*%t + 2", "(%i + 1)//2 + %t", "%i")),
        after=kernel(nest(4, "-2*%t + 3", "%i + %t", "2*%i") + nest(4, "-2*%t + 2", "%i + %t + 1", "2*%i + 1")),
        remark="%i split by 2",
    )


PLANE = """kernel @plane(in %x: f32[3, 3], in %w: f32[4, 4], out %y: f32[4, 6]) {
  parallel %i in 0..4 { parallel %j in 0..6 {
    %s = reduce add %t in 0..2, %u in 0..2 { yield %x[%i//2, %j//3 + %u] * %w[%i%2 + 2*%t, %j%3 + %u] }
    store %s, %y[%i, %j] } } }"""


def test_every_dimension_is_taken_apart() -> None:
    from compiler.ir.tile.kernel import Kernel

    made = check_pass("delinearize", before=PLANE, after="""kernel @plane(in %x: f32[3, 3], in %w: f32[4, 4], out %y: f32[4, 6]) {
      parallel %i in 0..2 { parallel %a in 0..2 { parallel %j in 0..2 { parallel %b in 0..3 {
        %s = reduce add %t in 0..2, %u in 0..2 { yield %x[%i, %j + %u] * %w[2*%t + %a, %u + %b] }
        store %s, %y[2*%i + %a, 3*%j + %b] } } } } }""")  # fmt: skip
    assert isinstance(made, Kernel)


def test_groups_of_channels_become_a_loop() -> None:
    """So that the channels of a group are the rows of a tile."""
    check_pass(
        "delinearize",
        before="""kernel @grouped(in %x: f32[4, 5], in %w: f32[6, 2], out %y: f32[6, 5]) {
          parallel %i in 0..6 { parallel %j in 0..5 {
            %s = reduce add %k in 0..2 { yield %x[(%i//3)*2 + %k, %j] * %w[%i, %k] } store %s, %y[%i, %j] } } }""",
        after="""kernel @grouped(in %x: f32[4, 5], in %w: f32[6, 2], out %y: f32[6, 5]) {
          parallel %i in 0..2 { parallel %c in 0..3 { parallel %j in 0..5 {
            %s = reduce add %k in 0..2 { yield %x[%i*2 + %k, %j] * %w[%i*3 + %c, %k] }
            store %s, %y[%i*3 + %c, %j] } } } }""",
        remark="%i split by 3",
    )


def test_a_contraction_in_a_row_of_its_consumer() -> None:
    """Loops around the row are split, so that it has no guards or divisions."""
    row = """{{ local %row: f32[3]
      for %c in 0..3 {{ %s = reduce add %t in 0..2 {{ yield %x[{x}] * %w[%c, {w}] }} store %s, %row[%c] }}
      %m = reduce max %d in 0..3 {{ yield %row[%d] }}
      for %c in 0..3 {{ store %row[%c] - %m, %y[%c, {y}] }} }}"""
    head = "kernel @rows(in %x: f32[7], in %w: f32[3, 4], out %y: f32[3, 8])"
    whole = row.format(x="(%i + 1)//2 + %t", w="(%i + 1)%2 + 2*%t", y="%i")
    parts = [row.format(x="%i + %t", w="2*%t + 1", y="2*%i"), row.format(x="%i + %t + 1", w="2*%t", y="2*%i + 1")]
    check_pass(
        "delinearize",
        before=f"{head} {{ parallel %i in 0..8 {whole} }}",
        after=f"{head} {{ {' '.join(f'parallel %i in 0..4 {part}' for part in parts)} }}",
    )


MOVES = {
    "repeated elements": (
        """kernel @k(in %x: f32[4], out %y: f32[12]) { parallel %i in 0..12 { store %x[%i//3] * 2.0, %y[%i] } }""",
        """kernel @k(in %x: f32[4], out %y: f32[12]) {
          parallel %i in 0..4 { parallel %r in 0..3 { store %x[%i] * 2.0, %y[%i*3 + %r] } } }""",
    ),
    "a flattened transposition": (
        """kernel @k(in %x: f32[3, 4, 5, 7], out %y: f32[420]) {
          parallel %i in 0..420 { store %x[(%i//4)%3, %i%4, (%i//12)%5, %i//60], %y[%i] } }""",
        """kernel @k(in %x: f32[3, 4, 5, 7], out %y: f32[420]) {
          parallel %i in 0..7 { parallel %c in 0..5 { parallel %b in 0..3 { parallel %a in 0..4 {
            store %x[%b, %a, %c, %i], %y[%a + %b*4 + %c*12 + %i*60] } } } } }""",
    ),
    "a store": (
        """kernel @k(in %x: f32[12], out %y: f32[3, 4]) { parallel %i in 0..12 { store %x[%i], %y[%i%3, %i//3] } }""",
        """kernel @k(in %x: f32[12], out %y: f32[3, 4]) {
          parallel %i in 0..4 { parallel %r in 0..3 { store %x[%i*3 + %r], %y[%r, %i] } } }""",
    ),
    "one of several nests": (
        """kernel @k(in %x: f32[4], out %y: f32[12]) {
          parallel %i in 0..3 { store 0.0, %y[%i + 8] }   parallel %i in 0..8 { store %x[%i//2], %y[%i] } }""",
        """kernel @k(in %x: f32[4], out %y: f32[12]) {
          parallel %i in 0..3 { store 0.0, %y[%i + 8] }
          parallel %i in 0..4 { parallel %r in 0..2 { store %x[%i], %y[%i*2 + %r] } } }""",
    ),
    "a value before the loop": (
        """kernel @k(in %x: f32[4], in %c: f32[], out %y: f32[12]) {
          %e = exp(%c[])  parallel %i in 0..12 { store %x[%i//3] * %e, %y[%i] } }""",
        """kernel @k(in %x: f32[4], in %c: f32[], out %y: f32[12]) {
          %e = exp(%c[])  parallel %i in 0..4 { parallel %r in 0..3 { store %x[%i] * %e, %y[%i*3 + %r] } } }""",
    ),
}


@pytest.mark.parametrize("case", MOVES)
def test_without_a_contraction_addresses_become_affine(case: str) -> None:
    before, after = MOVES[case]
    check_pass("delinearize", before=before, after=after)
    check_pass("delinearize{contractions-only=true}", unchanged=before)


def test_heads_that_share_keys_become_a_loop() -> None:
    """A loop around rows has no lanes."""
    rows = """{{ for %j in 0..5 {{ %s = reduce add %k in 0..4 {{ yield %q[{h}, %k] * %keys[{g}, %j, %k] }} store %s, %y[{h}, %j] }} }}"""
    head = "kernel @scores(in %q: f32[6, 4], in %keys: f32[2, 5, 4], out %y: f32[6, 5])"
    check_pass(
        "delinearize",
        before=f"{head} {{ parallel %h in 0..6 {rows.format(h='%h', g='%h//3')} }}",
        after=f"{head} {{ parallel %h in 0..2 {{ parallel %r in 0..3 {rows.format(h='%h*3 + %r', g='%h')} }} }}",
        remark="%h split by 3",
    )


STAY = {
    "neighbours of the innermost loop": """kernel @k(in %x: f32[3, 2], in %w: f32[2, 9], out %y: f32[9]) {
        parallel %i in 0..9 { %s = reduce add %k in 0..2 { yield %x[%i//3, %k] * %w[%k, %i] } store %s, %y[%i] } }""",
    "contiguous memory": """kernel @k(in %x: f32[4, 2], out %y: f32[8]) {
        parallel %i in 0..8 { store %x[%i//2, %i%2] * 2.0, %y[%i] } }""",
    "a divisor that does not divide the extent": """kernel @k(in %x: f32[4], out %y: f32[7]) {
        parallel %i in 0..7 { store %x[%i//2], %y[%i] } }""",
    "a guard on the remainder": """kernel @k(in %x: f32[4], out %y: f32[8]) {
        parallel %i in 0..8 { store where(index(%i%2) < 1, %x[%i//2], 0.0), %y[%i] } }""",
    "loads that inner loops repeat": """kernel @k(in %x: f32[99, 22], in %m: f32[2], out %y: f32[99, 22]) {
        parallel %c in 0..22 { %v = sqrt(%m[%c//11]) parallel %p in 0..99 { store %x[%p, %c] * %v, %y[%p, %c] } } }""",
    "serial loops": ROWS.replace("parallel", "for"),
    "two divisors": """kernel @k(in %x: f32[2, 3], in %w: f32[2], out %y: f32[12]) {
        parallel %i in 0..12 { %s = reduce add %k in 0..2 { yield %x[%i%2, %i%3] * %w[%k] } store %s, %y[%i] } }""",
    "a loop that starts elsewhere": """kernel @k(in %x: f32[4, 2, 3], in %w: f32[3], out %y: f32[8]) {
        parallel %i in 2..8 { %s = reduce add %k in 0..3 { yield %x[%i//2, %i%2, %k] * %w[%k] } store %s, %y[%i] } }""",
    "steps of two": """kernel @k(in %x: f32[5], in %w: f32[3], out %y: f32[8]) {
        parallel %i in 0..8 { %s = reduce add %k in 0..3 { yield %x[(2*%i + 1)%5] * %w[%k] } store %s, %y[%i] } }""",
}


@pytest.mark.parametrize("case", STAY)
def test_loops_that_stay(case: str) -> None:
    check_pass("delinearize", unchanged=STAY[case])


def test_too_many_copies_are_not_made() -> None:
    check_pass("delinearize{max-copies=1}", unchanged=transposed(8))
    check_pass(
        "delinearize{max-ops=7}", unchanged=transposed(8), remark="%i keeps its divisions: 2 copies of 4 operations"
    )
