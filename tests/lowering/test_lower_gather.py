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


def test_what_a_condition_bounds_is_not_checked() -> None:
    text = """graph(%x: f32[9], %p: f32[5]) {
      %a = ge %p, 0.0  %b = lt %p, 9.0  %in = and %a, %b  %k = cast %p {dtype=i64}  %i = where %in, %k, 0
      %y = take %x, %i  return %y }"""
    assert "%row0 = where((%p[%i0] >= 0.0) & (%p[%i0] < 9.0), cast<i64>(%p[%i0]), 0) store %x[%row0]" in body(text)
    assert "check" in body(text.replace("9.0", "9.5"))  # 9.2 is 9, one too far


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


def test_elements_of_stacked_rows_are_read_without_a_mask() -> None:
    text = """graph(%x: f32[5], %z: f32[5]) {
      %a = reshape %x {shape=[5, 1]} %b = reshape %z {shape=[5, 1]} %y = cat %a, %b {dim=1} return %y }"""
    assert body(text) == (
        "parallel %i0 in 0..5 { parallel %i1 in 0..2 { %inside0 = index(%i1 - 1) >= 0 %inside1 = index(%i1 - 1) < 0 "
        "store where(%inside1, %x[%i0], %z[%i0]), %out0[%i0, %i1] } } }"
    )
