"""limit-code-size: tiles shrink where the code would be long."""

from __future__ import annotations

from compiler.testing.checks import check_pass

ROWS = """kernel @k(in %x: f32[12, 64], out %y: f32[12, 64]) {{
  parallel %i in 0..12{rows} {{ for %j in 0..64 tile {columns} lanes 16 {{ store %x[%i, %j] * 2.0 + 1.0, %y[%i, %j] }} }} }}"""
PRODUCT = """kernel @k(in %x: f32[12, 8], const %w: f32[8, 32], out %y: f32[12, 32]) {
  parallel %i in 0..12 tile 12 { for %j in 0..32 tile 32 lanes 16 {
    %a = reduce add %k in 0..8 { yield %x[%i, %k] * %w[%k, %j] }  store %a, %y[%i, %j] } } }"""


def test_the_loop_that_repeats_most_goes_first() -> None:
    """12 rows of 4 vectors of 4 operations are 192; half of the rows leave 96, and rows of two vectors one by one 8."""
    before = ROWS.format(rows=" tile 12", columns=64)
    check_pass("limit-code-size{max-ops=100}", before=before, after=ROWS.format(rows=" tile 6", columns=64))
    remark = "8 operations of code instead of 192: smaller tiles, fewer unrolled steps"
    check_pass("limit-code-size{max-ops=20}", before=before, after=ROWS.format(rows="", columns=32), remark=remark)
    check_pass("limit-code-size{max-ops=4}", before=before, after=ROWS.format(rows="", columns=16))


def test_short_code_stays_as_it_is() -> None:
    check_pass("limit-code-size", unchanged=ROWS.format(rows=" tile 12", columns=64))


def test_accumulators_keep_their_tiles() -> None:
    remark = "operations of code: its tiles hold accumulators"
    check_pass("limit-code-size{max-ops=20}", unchanged=PRODUCT, remark=remark)


def test_unrolled_steps_of_a_contraction_go_last() -> None:
    """24 accumulators of 4 operations, twice."""
    unrolled = PRODUCT.replace("0..8 {", "0..8 unroll 2 {")
    remark = "of code instead of"
    check_pass("limit-code-size{max-ops=150}", before=unrolled, after=PRODUCT, remark=remark)
