"""Gathers as loops: what is looked up is checked, unless it is known to be inside."""

from __future__ import annotations

from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.lowering.kernel import lower_kernel


def body(text: str) -> str:
    return " ".join(print_kernel(lower_kernel(parse_graph(text), "k")).split()).split("{ ", 1)[1]


def test_an_index_that_is_read_is_checked() -> None:
    assert body("graph(%x: f32[9], %i: i64[5]) { %y = take %x, %i return %y }") == (
        "parallel %i0 in 0..5 { %v0 = %i[%i0] check %v0 in 0..9 %row0 = where((%v0 >= 0) & (%v0 < 9), %v0, 0) "
        "store %x[%row0], %out0[%i0] } }"
    )


def test_a_place_that_is_known_to_be_inside_is_an_address() -> None:
    text = "graph(%x: f32[9]) { %i = iota {size=9} %y = take %x, %i return %y }"
    assert body(text) == "parallel %i0 in 0..9 { store %x[%i0], %out0[%i0] } }"


def test_sums_and_products_of_indices_are_addresses() -> None:
    text = """graph(%x: f32[12]) { %a = iota {size=4} %b = mul %a, 3 %i = add %b, 2 %y = take %x, %i return %y }"""
    assert body(text) == "parallel %i0 in 0..4 { store %x[%i0*3 + 2], %out0[%i0] } }"
    assert "check" in body(text.replace("add %b, 2", "add %b, 3"))


def test_a_number_that_is_outside_is_noticed() -> None:
    text = "graph(%x: f32[9]) { %i = dim_value {value=9} %y = take %x, %i return %y }"
    assert "check %v0 in 0..9" in body(text)


def test_an_index_under_a_guard_is_checked_where_it_counts() -> None:
    text = "graph(%x: f32[9], %i: i64[5]) { %t = take %x, %i %y = pad %t {before=[2], after=[0]} return %y }"
    assert "%v1 = where(%inside0, %v0, 0) check %v1 in 0..9" in body(text)
