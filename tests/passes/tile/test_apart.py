"""apart: sums and what becomes of them come apart in the rows that an open loop leaves over."""

from __future__ import annotations

import pytest

from compiler.testing import check_pass

PARAMS = "size n in 2..513 like 43, in %x: f32[n, 9], in %w: f32[9, 64], out %y: f32[n, 64]"
SUM = "%s = reduce add %k in 0..9 { yield %x[%i, %k] * %w[%k, %j] }"
GATE = "%t = exp(%s) store %t / (%t + 1.0), %y[%i, %j]"


def kernel(body: str, params: str = PARAMS) -> str:
    return f"kernel @k({params}) {{ {body} }}"


def inside_columns(rest: str, columns: str = "0..64 tile 32") -> str:
    return f"parallel %j in {columns} lanes 16 {{ {rest} }}"


FULL = f"parallel %i in 0..n//4*4 tile 4 {{ {SUM} {GATE} }}"
LEFT = f"""local %kept: f32[3]
  parallel %i in n//4*4..n tile 4 {{ {SUM} store %s, %kept[%i - n//4*4] }}
  parallel %i in n//4*4..n {{ %t = exp(%kept[%i - n//4*4]) store %t / (%t + 1.0), %y[%i, %j] }}"""

ROWS_OUTSIDE = kernel(f"parallel %i in 0..n tile 4 {{ {inside_columns(f'{SUM} {GATE}')} }}")
ROWS_INSIDE = kernel(inside_columns(f"parallel %i in 0..n tile 4 {{ {SUM} {GATE} }}"))


def test_rows_inside_the_columns() -> None:
    check_pass("apart{written=100}", before=ROWS_INSIDE, after=kernel(inside_columns(f"{FULL} {LEFT}")))


def test_columns_go_around_the_rows_where_threads_have_enough_of_them() -> None:
    """Two blocks of columns: one step for each of two threads."""
    check_pass(
        "apart{written=100,slices=1}",
        before=ROWS_OUTSIDE,
        after=kernel(inside_columns(f"{FULL} {LEFT}")),
        remark="rows that %i leaves over are summed together and finished one by one",
    )


def test_else_around_what_is_left_alone() -> None:
    full = f"parallel %i in 0..n//4*4 tile 4 {{ {inside_columns(f'{SUM} {GATE}')} }}"
    check_pass("apart{written=100}", before=ROWS_OUTSIDE, after=kernel(f"{full} {inside_columns(LEFT)}"))


def test_what_sums_need_is_computed_for_them_and_what_the_rest_needs_for_it() -> None:
    """%a is wanted for the sums, %b for the rest, %c for both."""
    before = """%c = %x[%i, 0] %a = %c * 2.0 %b = exp(%c)
      %s = reduce add %k in 0..9 { yield (%x[%i, %k] + %a) * %w[%k, %j] }
      %m = reduce max %l in 0..9 { yield %x[%i, %l] * %w[%l, %j] }
      store %s * %b, %y[%i, %j] store exp(%m) + %s, %z[%i, %j]"""
    left = """local %s.left: f32[3] local %m.left: f32[3]
      parallel %i in n//4*4..n tile 4 {
        %c = %x[%i, 0] %a = %c * 2.0
        %s = reduce add %k in 0..9 { yield (%x[%i, %k] + %a) * %w[%k, %j] }
        %m = reduce max %l in 0..9 { yield %x[%i, %l] * %w[%l, %j] }
        store %s, %s.left[%i - n//4*4] store %m, %m.left[%i - n//4*4] }
      parallel %i in n//4*4..n {
        %c = %x[%i, 0] %b = exp(%c)
        store %s.left[%i - n//4*4] * %b, %y[%i, %j] store exp(%m.left[%i - n//4*4]) + %s.left[%i - n//4*4], %z[%i, %j] }"""
    params = f"{PARAMS}, out %z: f32[n, 64]"
    check_pass(
        "apart{written=100}",
        before=kernel(inside_columns(f"parallel %i in 0..n tile 4 {{ {before} }}"), params),
        after=kernel(inside_columns(f"parallel %i in 0..n//4*4 tile 4 {{ {before} }} {left}"), params),
    )


STAY = {
    "little arithmetic": ROWS_INSIDE.replace("exp", "abs"),
    "sums that are too long themselves": ROWS_INSIDE.replace("yield %x[%i, %k]", "yield exp(exp(%x[%i, %k]))"),
    "a length that is known": ROWS_INSIDE.replace("size n in 2..513 like 43, ", "")
    .replace("[n", "[43")
    .replace("0..n", "0..43"),
    "rows that the tile divides": ROWS_INSIDE.replace("0..n tile", "0..n//4*4 tile"),
    "rows outside all lanes": kernel(
        "parallel %i in 0..n tile 4 { %s = reduce add %k in 0..9 { yield %x[%i, %k] } store exp(exp(%s)), %y[%i, 0] }"
    ),
    "rows in order": ROWS_INSIDE.replace("parallel %i", "for %i"),
    "sums that may be indices": ROWS_INSIDE.replace(
        "%w[%k, %j] }", "%w[%k, %j] } %u = reduce max %l in 0..9 { yield %i*%l }"
    ),
    "no sums": kernel(inside_columns("parallel %i in 0..n tile 4 { store exp(exp(exp(%w[0, %j]))), %y[%i, %j] }")),
    "sums that read what is stored": ROWS_INSIDE.replace("in %x: f32[n, 9]", "inout %x: f32[n, 64]").replace(
        SUM, f"store %w[0, %j], %x[%i, %j] {SUM}"
    ),
}


@pytest.mark.parametrize("case", STAY)
def test_stays(case: str) -> None:
    check_pass("apart{written=100}", unchanged=STAY[case])
