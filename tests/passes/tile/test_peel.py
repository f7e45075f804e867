"""peel: full tiles, then the rest."""

from __future__ import annotations

import pytest

from compiler.testing import check_pass


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
    body = "{{ {} store %x[%i] + index_free, %y[%i, %j] {} }}".replace(" + index_free", "")
    loops = ("{} in {} tile {} ", "{{")
    parts = [
        ("0..4 tile 4", "0..6 tile 3"), ("0..4 tile 4", "6..8 tile 2"), ("4..5 tile 1", "0..6 tile 3"), ("4..5 tile 1", "6..8 tile 2"),
    ]  # fmt: skip
    del body, loops

    def inner(j: str) -> str:
        return f"for %j in {j} {{ store %x[%i], %y[%i, %j] }}"

    rows = {i: " ".join(inner(j) for k, j in parts if k == i) for i, _ in parts}
    check_pass(
        "peel",
        before=kernel("for %i in 0..5 tile 4 { " + inner("0..8 tile 3") + " }", "in %x: f32[5], out %y: f32[5, 8]"),
        after=kernel(" ".join(f"for %i in {i} {{ {row} }}" for i, row in rows.items()), "in %x: f32[5], out %y: f32[5, 8]"),
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
        before=kernel("%s = reduce add %a in 0..3 tile 2, %b in 0..2 tile 4, %c in 0..7 tile 4 { yield %x[%a*7 + %c] } store %s, %y[0]"),
        after=kernel("""
          %p = reduce add %d in 0..2 tile 2, %e in 0..2 tile 2, %f in 0..4 tile 4 { yield %x[%d*7 + %f] }
          %q = reduce add %g in 0..2 tile 2, %h in 0..2 tile 2, %i in 4..7 tile 3 { yield %x[%g*7 + %i] }
          %r = %p + %q
          %t = reduce add %j in 2..3 tile 1, %k in 0..2 tile 2, %l in 0..4 tile 4 { yield %x[%j*7 + %l] }
          %u = reduce add %m in 2..3 tile 1, %n in 0..2 tile 2, %o in 4..7 tile 3 { yield %x[%m*7 + %o] }
          %v = %t + %u
          %s = %r + %v store %s, %y[0]"""),
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
