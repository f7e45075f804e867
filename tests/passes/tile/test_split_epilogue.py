"""apart: rows are summed together and finished one by one, tile by tile."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

PARAMS = "size n in 2..513 hint 43, in %x: f32[n, 9], in %w: f32[9, 64], out %y: f32[n, 64]"
SUM = "%s = reduce add %k in 0..9 { yield %x[%i, %k] * %w[%k, %j] }"
GATE = "%t = exp(%s) store %t / (%t + 1.0), %y[%i, %j]"


def of_length(rows: int, text: str) -> str:
    return text.replace("size n in 2..513 hint 43, ", "").replace("[n", f"[{rows}").replace("0..n", f"0..{rows}")


def kernel(body: str, params: str = PARAMS) -> str:
    return f"kernel @k({params}) {{ {body} }}"


def inside_columns(rest: str, columns: str = "0..64 tile 32") -> str:
    return f"parallel %j in {columns} lanes 16 {{ {rest} }}"


def apart(lo: str, length: str, rows: int = 4) -> str:
    place = f"%i - {lo}" if lo != "0" else "%i"
    return f"""local %kept: f32[{rows}]
      for %i in {lo}..{lo} + {length} tile {rows} {{ {SUM} store %s, %kept[{place}] }}
      for %i in {lo}..{lo} + {length} {{ %t = exp(%kept[{place}]) store %t / (%t + 1.0), %y[%i, %j] }}"""


LAST_MAY_BE_SHORT = apart("%b*4", "min(4, n - %b*4)")
TILES = "parallel %b in 0..(n + 3)//4"

ROWS_OUTSIDE = kernel(f"parallel %i in 0..n tile 4 {{ {inside_columns(f'{SUM} {GATE}')} }}")
ROWS_INSIDE = kernel(inside_columns(f"parallel %i in 0..n tile 4 {{ {SUM} {GATE} }}"))


def test_tiles_of_an_open_length() -> None:
    check_pass(
        "split-epilogue{max-expanded-ops=100}",
        before=ROWS_INSIDE,
        after=kernel(inside_columns(f"{TILES} {{ {LAST_MAY_BE_SHORT} }}")),
        remark="epilogue of %i split into its own loop",
    )


def test_loops_between_stay_inside_those_over_tiles() -> None:
    after = kernel(f"{TILES} {{ {inside_columns(LAST_MAY_BE_SHORT)} }}")
    check_pass("split-epilogue{max-expanded-ops=100}", before=ROWS_OUTSIDE, after=after)


@pytest.mark.parametrize(
    ("rows", "tiles"), [(4, apart("0", "4")), (8, f"parallel %b in 0..2 {{ {apart('%b*4', '4')} }}")]
)
def test_tiles_of_a_known_length(rows: int, tiles: str) -> None:
    """Two vectors of four rows of 12 + 8 + 1 operations are more than 150, whatever the order of the loops."""
    after = kernel(inside_columns(tiles)).replace("size n in 2..513 hint 43, ", "").replace("[n", f"[{rows}")
    check_pass("split-epilogue{max-epilogue-ops=150}", before=of_length(rows, ROWS_INSIDE), after=after)
    check_pass("split-epilogue{max-epilogue-ops=170}", unchanged=of_length(rows, ROWS_INSIDE))
    check_pass("split-epilogue{max-epilogue-ops=170}", unchanged=of_length(rows, ROWS_OUTSIDE))


@pytest.mark.parametrize("left", [2, 3])
def test_what_a_known_length_leaves_over(left: int) -> None:
    """Three rows are more than 100 operations, two are not."""
    row = (
        f"parallel %i in 4..{4 + left} tile 2 {{ {SUM} {GATE} }}"
        if left == 2
        else apart("4", "3", 3).replace("%kept", "%last")
    )
    after = kernel(inside_columns(f"parallel %b in 0..1 {{ {apart('%b*4', '4')} }} {row}"))
    after = after.replace("size n in 2..513 hint 43, ", "").replace("[n", f"[{4 + left}")
    check_pass("split-epilogue{max-epilogue-ops=100}", before=of_length(4 + left, ROWS_INSIDE), after=after)


def test_what_sums_need_is_computed_for_them_and_what_the_rest_needs_for_it() -> None:
    """%a is wanted for the sums, %b for the rest, %c for both."""
    before = """%c = %x[%i, 0] %a = %c * 2.0 %b = exp(%c)
      %s = reduce add %k in 0..9 { yield (%x[%i, %k] + %a) * %w[%k, %j] }
      %m = reduce max %l in 0..9 { yield %x[%i, %l] * %w[%l, %j] }
      store %s * %b, %y[%i, %j] store exp(%m) + %s, %z[%i, %j]"""
    rows = "%i in %b*4..%b*4 + min(4, n - %b*4)"
    after = f"""local %s.rows: f32[4] local %m.rows: f32[4]
      for {rows} tile 4 {{
        %c = %x[%i, 0] %a = %c * 2.0
        %s = reduce add %k in 0..9 {{ yield (%x[%i, %k] + %a) * %w[%k, %j] }} store %s, %s.rows[%i - %b*4]
        %m = reduce max %l in 0..9 {{ yield %x[%i, %l] * %w[%l, %j] }} store %m, %m.rows[%i - %b*4] }}
      for {rows} {{
        %c = %x[%i, 0] %b.1 = exp(%c)
        store %s.rows[%i - %b*4] * %b.1, %y[%i, %j] store exp(%m.rows[%i - %b*4]) + %s.rows[%i - %b*4], %z[%i, %j] }}"""
    params = f"{PARAMS}, out %z: f32[n, 64]"
    check_pass(
        "split-epilogue{max-expanded-ops=100}",
        before=kernel(inside_columns(f"parallel %i in 0..n tile 4 {{ {before} }}"), params),
        after=kernel(inside_columns(f"{TILES} {{ {after} }}"), params),
    )


@pytest.mark.parametrize(("rows", "split"), [(7, False), (8, True)])
def test_two_sums_that_registers_cannot_hold(rows: int, split: bool) -> None:
    """Of 32 registers two sums of seven rows and two vectors leave four."""
    second = "%m = reduce add %l in 0..9 { yield %x[%i, %l] * %w[%l, %j] + 1.0 }"
    tile = f"%i in 0..{rows} tile {rows}"
    before = f"parallel {tile} {{ {SUM} {second} store %s * %m, %y[%i, %j] }}"
    after = f"""local %s.rows: f32[{rows}] local %m.rows: f32[{rows}]
      for {tile} {{ {SUM} store %s, %s.rows[%i] {second} store %m, %m.rows[%i] }}
      for %i in 0..{rows} {{ store %s.rows[%i] * %m.rows[%i], %y[%i, %j] }}"""
    params = of_length(rows, PARAMS)
    check_pass(
        "split-epilogue",
        before=kernel(inside_columns(before), params),
        after=kernel(inside_columns(after if split else before), params),
    )


STAY = {
    "little arithmetic": ROWS_INSIDE.replace("exp", "abs"),
    "sums that are too long themselves": ROWS_INSIDE.replace("yield %x[%i, %k]", "yield exp(exp(%x[%i, %k]))"),
    "a length that is known": of_length(43, ROWS_INSIDE),
    "rows that the tile divides": ROWS_INSIDE.replace("0..n tile", "0..n//4*4 tile"),
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
    check_pass("split-epilogue{max-expanded-ops=100}", unchanged=STAY[case])
