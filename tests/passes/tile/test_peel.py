"""peel: full tiles, then the rest."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def kernel(body: str, params: str = "in %x: f32[21], out %y: f32[21]") -> str:
    return f"kernel @k({params}) {{ {body} }}"


def test_the_rest_is_a_smaller_tile() -> None:
    check_pass(
        "peel",
        before=kernel("parallel %i in 0..21 tile 8 lanes 4 unroll 2 { store %x[%i], %y[%i] }"),
        after=kernel("""
          parallel %i in 0..16 tile 8 lanes 4 unroll 2 { store %x[%i], %y[%i] }
          parallel %i in 16..21 tile 5 lanes 4 unroll 2 { store %x[%i], %y[%i] }"""),
    )


def test_a_loop_of_less_than_a_tile_has_a_smaller_tile() -> None:
    check_pass(
        "peel",
        before=kernel("for %i in 2..7 tile 8 lanes 8 { store %x[%i], %y[%i] }", "in %x: f32[21], inout %y: f32[21]"),
        after=kernel("for %i in 2..7 tile 5 lanes 8 { store %x[%i], %y[%i] }", "in %x: f32[21], inout %y: f32[21]"),
    )


def test_nested_loops() -> None:
    parts = [
        ("0..4 tile 4", "0..6 tile 3"), ("0..4 tile 4", "6..8 tile 2"), ("4..5 tile 1", "0..6 tile 3"), ("4..5 tile 1", "6..8 tile 2"),
    ]  # fmt: skip

    def inner(j: str) -> str:
        return f"for %j in {j} {{ store %x[%i], %y[%i, %j] }}"

    rows = {i: " ".join(inner(j) for k, j in parts if k == i) for i, _ in parts}
    check_pass(
        "peel",
        before=kernel("for %i in 0..5 tile 4 { " + inner("0..8 tile 3") + " }", "in %x: f32[5], out %y: f32[5, 8]"),
        after=kernel(
            " ".join(f"for %i in {i} {{ {row} }}" for i, row in rows.items()), "in %x: f32[5], out %y: f32[5, 8]"
        ),
    )


@pytest.mark.parametrize("op", ["add", "max"])
def test_the_parts_of_a_reduction_are_combined(op: str) -> None:
    whole = "%t_1 + %t_2" if op == "add" else "max(%t_1, %t_2)"
    check_pass(
        "peel",
        before=kernel(f"%s = reduce {op} %k in 0..21 tile 16 lanes 8 {{ %v = %x[%k] yield %v * %v }} store %s, %y[0]"),
        after=kernel(f"""
          %t_1 = reduce {op} %k_1 in 0..16 tile 16 lanes 8 {{ %v_1 = %x[%k_1] yield %v_1 * %v_1 }}
          %t_2 = reduce {op} %k_2 in 16..21 tile 5 lanes 8 {{ %v_2 = %x[%k_2] yield %v_2 * %v_2 }}
          %s = {whole} store %s, %y[0]"""),
    )


def test_every_range_of_a_reduction() -> None:
    check_pass(
        "peel",
        before=kernel(
            "%s = reduce add %a in 0..3 tile 2, %b in 0..2 tile 4, %c in 0..7 tile 4 { yield %x[%a*7 + %c] } store %s, %y[0]"
        ),
        after=kernel("""
          %first_rows_left = reduce add %a_1 in 0..2 tile 2, %b_1 in 0..2 tile 2, %c_1 in 0..4 tile 4 { yield %x[%a_1*7 + %c_1] }
          %first_rows_right = reduce add %a_2 in 0..2 tile 2, %b_2 in 0..2 tile 2, %c_2 in 4..7 tile 3 { yield %x[%a_2*7 + %c_2] }
          %first_rows = %first_rows_left + %first_rows_right
          %last_row_left = reduce add %a_3 in 2..3 tile 1, %b_3 in 0..2 tile 2, %c_3 in 0..4 tile 4 { yield %x[%a_3*7 + %c_3] }
          %last_row_right = reduce add %a_4 in 2..3 tile 1, %b_4 in 0..2 tile 2, %c_4 in 4..7 tile 3 { yield %x[%a_4*7 + %c_4] }
          %last_row = %last_row_left + %last_row_right
          %s = %first_rows + %last_row store %s, %y[0]"""),
    )


def test_new_names_are_new() -> None:
    check_pass(
        "peel",
        before=kernel("%s_1 = %x[0] %s = reduce add %k in 0..3 tile 2 { yield %x[%k] } store %s + %s_1, %y[0]"),
        after=kernel("""
          %a = %x[0]
          %b = reduce add %k in 0..2 tile 2 { yield %x[%k] }
          %c = reduce add %l in 2..3 { yield %x[%l] }
          %s = %b + %c store %s + %a, %y[0]"""),
    )


FULL = {
    "a tile that divides": "for %i in 0..20 tile 5 { store %x[%i], %y[%i] }",
    "no step at all": "for %i in 3..3 tile 4 { store %x[%i], %y[%i] }",
    "a start that moves": "for %b in 0..5 { for %i in %b*4..%b*4 + 4 tile 2 { store %x[%i], %y[%i] } }",
}


@pytest.mark.parametrize("case", FULL)
def test_full_tiles_stay(case: str) -> None:
    check_pass("peel", unchanged=kernel(FULL[case], "in %x: f32[21], inout %y: f32[21]"))


def open_kernel(body: str) -> str:
    return kernel(body, "size n in 2..513 hint 43, in %x: f32[n], out %y: f32[n]")


def test_what_an_open_loop_leaves_over_is_one_tile() -> None:
    check_pass(
        "peel",
        before=open_kernel("parallel %i in 0..n tile 32 lanes 8 { store %x[%i], %y[%i] }"),
        after=open_kernel("""
          parallel %i in 0..n//32*32 tile 32 lanes 8 { store %x[%i], %y[%i] }
          parallel %i in n//32*32..n tile 32 lanes 8 { store %x[%i], %y[%i] }"""),
    )


def test_what_an_open_reduction_leaves_over_is_taken_vector_by_vector() -> None:
    total = "size n in 2..513 hint 43, in %x: f32[n], out %y: f32[1]"
    part = "%s_{} = reduce add %k_{} in {} tile {} lanes 8 {{ yield %x[%k_{}] }}".format
    check_pass(
        "peel",
        before=kernel("%s = reduce add %k in 0..n tile 32 lanes 8 { yield %x[%k] } store %s, %y[0]", total),
        after=kernel(
            f"{part(1, 1, '0..n//32*32', 32, 1)} {part(2, 2, 'n//32*32..n//8*8', 8, 2)} {part(3, 3, 'n//8*8..n', 8, 3)}"
            "%s = %s_1 + %s_2 + %s_3 store %s, %y[0]",
            total,
        ),
    )


def test_a_rest_of_less_than_a_vector_stays() -> None:
    check_pass("peel", unchanged=open_kernel("parallel %i in n//8*8..n tile 8 lanes 8 { store %x[%i], %y[%i] }"))


SUMS = "{ %s = reduce add %k in 0..9 { yield %x[%k, %i] * 2.0 } store %s, %y[%i] }"


def columns(lengths: str, loops: str) -> str:
    return kernel(loops.replace("@", SUMS), f"size n in {lengths}, in %x: f32[9, n], out %y: f32[n]")


def test_around_sums_it_is_one_tile() -> None:
    """So that there are sums enough to add side by side."""
    check_pass(
        "peel",
        before=columns("2..513 hint 43", "for %i in 0..n tile 32 lanes 8 @"),
        after=columns(
            "2..513 hint 43", "for %i in 0..n//32*32 tile 32 lanes 8 @ for %i in n//32*32..n tile 32 lanes 8 @"
        ),
    )


def test_of_as_many_vectors_as_there_can_be() -> None:
    loop = "for %i in 0..n tile 32 lanes 8 @"
    check_pass("peel", before=columns("2..18 hint 4", loop), after=columns("2..18 hint 4", loop.replace("32", "24")))
    check_pass("peel", before=columns("2..9 hint 4", loop), after=columns("2..9 hint 4", loop.replace("32", "8")))


def test_what_an_open_loop_leaves_over_of_long_rows_is_taken_in_smaller_tiles() -> None:
    """Of rows that are written out in more operations than `written`."""
    open_rows = "parallel %i in {} {{ store -%x[%i], %y[%i] }}".format
    before, parts = open_kernel(open_rows("0..n tile 8")), ("0..n//8*8 tile 8", "n//8*8..n//4*4 tile 4", "n//4*4..n//2*2 tile 2", "n//2*2..n")  # fmt: skip
    check_pass("peel{max-expanded-ops=5}", before=before, after=open_kernel(" ".join(map(open_rows, parts))))
    after = before.replace("tile 8", "tile 8 balanced")
    check_pass("peel{max-expanded-ops=28}", before=before, after=after)


@pytest.mark.parametrize(
    ("written", "tiles"),
    [
        (27, ("0..n//8*8 tile 8", "n//8*8..n tile 4 balanced")),
        (19, ("0..n//8*8 tile 8", "n//8*8..n//4*4 tile 4", "n//4*4..n tile 2 balanced")),
    ],
)
def test_until_every_number_of_those_that_are_left_is_little_code(written: int, tiles: tuple[str, ...]) -> None:
    """Tiles of 1 to 4 rows are 10 operations, those of 1 and 2 are 3: half of `written` or less."""
    open_rows = "parallel %i in {} {{ store -%x[%i], %y[%i] }}".format
    after = open_kernel(" ".join(map(open_rows, tiles)))
    check_pass(f"peel{{max-expanded-ops={written}}}", before=open_kernel(open_rows("0..n tile 8")), after=after)


@pytest.mark.parametrize(("times", "whole"), [(8, True), (16, False)])
def test_loops_that_compute_little_beside_others_may_take_less_code(times: int, whole: bool) -> None:
    """An eighth of the work and more may take as much, a sixteenth half of it: edges of an image are taken in smaller tiles."""
    inner = f"for %k in 0..n tile 8 {{ for %j in 0..{times} {{ store -%x[%k], %y[%k] }} }}"
    once, parts = "for %i in {} {{ store -%x[%i], %y[%i] }}".format, ("0..n//8*8 tile 8", "n//8*8..n//4*4 tile 4", "n//4*4..n tile 2 balanced")  # fmt: skip
    edge = once("0..n tile 8 balanced") if whole else " ".join(map(once, parts))
    check_pass(
        "peel{max-expanded-ops=28}",
        before=open_kernel(f"{once('0..n tile 8')} {inner}"),
        after=open_kernel(f"{edge} {inner.replace('tile 8', 'tile 8 balanced')}"),
    )


ROWS = """kernel @k(size n in 2..513 hint 43, in %x: f32[n, 9], in %w: f32[9, 32], out %y: f32[n, 32]) {
  parallel %i in 0..n tile 4 { for %j in 0..32 tile 32 lanes 16 {
    %s = reduce add %k in 0..9 { yield %x[%i, %k] * %w[%k, %j] } store %s, %y[%i, %j] } } }"""


BALANCED = ROWS.replace("tile 4", "tile 4 balanced")
IN_CHAINS = BALANCED.replace("0..9 {", "0..9 accumulators 16 {")


def test_rows_that_keep_accumulators_stay_partial_and_few_of_them_add_in_chains() -> None:
    """In half of the registers."""
    check_pass("peel", before=ROWS, after=IN_CHAINS)


def test_they_do_so_too_where_each_step_asks_for_a_later_one() -> None:
    ask = "{ prefetch %w[%k + 2, %j] "
    check_pass(
        "peel",
        before=ROWS.replace("0..9 {", "0..9 " + ask),
        after=BALANCED.replace("0..9 {", "0..9 accumulators 16 " + ask),
    )


def test_only_products_add_in_chains_and_only_along_their_last_loop() -> None:
    start = "parallel %i in 0..n tile 4 { for %j in 0..32 tile 32 lanes 16 { "
    sums = "%s = reduce max %k in 0..9 { yield %w[%k, %j] } %t = reduce add %k in 0..3, %l in 0..3"
    rest = "{ yield %x[%i, %k*3 + %l] * %w[%k*3 + %l, %j] } store %s + %t, %y[%i, %j] } }"
    params = "size n in 2..513 hint 43, in %x: f32[n, 9], in %w: f32[9, 32], out %y: f32[n, 32]"
    check_pass(
        "peel",
        before=kernel(f"{start} {sums} {rest}", params),
        after=kernel(f"{start.replace('tile 4', 'tile 4 balanced')} {sums} accumulators 16 {rest}", params),
    )


def test_but_not_where_every_number_of_them_would_be_much_code() -> None:
    """Rests of 1, 2 and 3 rows, each of two registers, with one product: 12 operations."""
    start = ROWS.index("parallel")
    loop = ROWS[start:-1]
    parts = ("0..n//4*4 tile 4", "n//4*4..n//2*2 tile 2", "n//2*2..n")
    split = "".join(loop.replace("0..n tile 4", part) for part in parts)
    check_pass("peel{max-expanded-ops=12}", before=ROWS, after=IN_CHAINS)
    check_pass("peel{max-expanded-ops=11}", before=ROWS, after=ROWS[:start] + split + "}")


def test_a_rest_that_is_known_is_a_full_tile() -> None:
    """Of sizes that vectors divide."""
    check_pass(
        "peel",
        before="""kernel @k(size s0 in 1..50 hint 50, out %y: f32[s0*16 + 2]) {
          for %i in 0..s0*16 + 2 tile 16 lanes 16 { store 0.0, %y[%i] }
        }""",
        after="""kernel @k(size s0 in 1..50 hint 50, out %y: f32[s0*16 + 2]) {
          for %i in 0..s0*16 tile 16 lanes 16 { store 0.0, %y[%i] }
          for %i in s0*16..s0*16 + 2 tile 2 lanes 16 { store 0.0, %y[%i] }
        }""",
    )


def test_an_open_loop_that_its_tile_divides_stays_whole() -> None:
    params = "size n in 2..513 hint 5, in %x: f32[n*8], out %y: f32[n*8]"
    check_pass("peel", unchanged=kernel("for %i in 0..n*8 tile 4 { store %x[%i], %y[%i] }", params))


def test_an_open_reduction_is_combined() -> None:
    params = "size n in 2..513 hint 43, in %x: f32[n], out %y: f32[1]"
    check_pass(
        "peel",
        before=kernel("%s = reduce max %r in 0..n tile 16 lanes 8 { yield %x[%r] } store %s, %y[0]", params),
        after=kernel(
            """
          %s_1 = reduce max %r_1 in 0..n//16*16 tile 16 lanes 8 { yield %x[%r_1] }
          %s_2 = reduce max %r_2 in n//16*16..n//8*8 tile 8 lanes 8 { yield %x[%r_2] }
          %s_3 = reduce max %r_3 in n//8*8..n tile 8 lanes 8 { yield %x[%r_3] }
          %s = max(max(%s_1, %s_2), %s_3)
          store %s, %y[0]""",
            params,
        ),
    )
