"""Scatters as loops: what threads may share, and what stays in order."""

from __future__ import annotations

import pytest

from compiler.errors import LoweringError
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.kernel import Kernel
from compiler.lowering.kernel import lower_kernel
from compiler.passes.manager import run_pipeline


def lowered(text: str) -> Kernel:
    return lower_kernel(parse_graph(text), "k")


def kernel(text: str) -> str:
    return " ".join(print_kernel(lowered(text)).split())


def test_a_copy_then_the_writes() -> None:
    text = 'graph(%x: f32[9], %i: i64[5], %v: f32[5]) { %y = scatter %x, %i, %v {dim=0, reduce="add"} return %y }'
    assert kernel(text) == (
        "kernel @k(in %x: f32[9], in %i: i64[5], in %v: f32[5], out %out0: f32[9]) { "
        "parallel %i0 in 0..9 { store %x[%i0], %out0[%i0] } "
        "for %u0 in 0..5 { %v0 = %i[%u0] check %v0 in 0..9 %row0 = where((%v0 >= 0) & (%v0 < 9), %v0, 0) "
        "store %out0[%row0] + %v[%u0], %out0[%row0] } }"
    )


def test_rows_that_never_meet_are_shared() -> None:
    text = "graph(%x: f32[32, 9], %i: i64[32, 5], %v: f32[32, 5]) { %y = scatter %x, %i, %v {dim=1} return %y }"
    assert "parallel %u0 in 0..32 { for %u1 in 0..5 {" in kernel(text)


def test_long_rows_are_shared_in_blocks() -> None:
    text = "graph(%x: f32[9, 768], %v: f32[5, 768], %i: i64[5]) { %y = index_put %x, %v, %i {dims=[0]} return %y }"
    got = kernel(text)
    assert "parallel %block0 in 0..3 { for %u0 in 0..5 {" in got
    assert "for %u1 in %block0*256..%block0*256 + 256 {" in got


def test_the_base_is_never_written_over() -> None:
    """The output is read and written in places that the data names: it cannot be the memory of an input."""
    from compiler.ir.tile.inplace import aliasable_pairs

    text = 'graph(%x: f32[9], %i: i64[5], %v: f32[5]) {{ %y = scatter %x, %i, %v {{dim=0, reduce="{}"}} return %y }}'
    assert not any(aliasable_pairs(lowered(text.format(reduce))) for reduce in ("add", "set"))


def test_where_there_is_no_place_nothing_is_written() -> None:
    text = "graph(%x: f32[0, 3], %v: f32[2, 3], %i: i64[2]) { %y = index_put %x, %v, %i {dims=[0]} return %y }"
    got = kernel(text)
    assert "check" in got
    assert "%v[" not in got


def test_a_scan_is_no_part_of_a_scatter() -> None:
    text = """graph(%x: f32[9], %v: f32[5], %i: i64[5]) {
      %s = cumsum %i {dim=0} %y = scatter %x, %s, %v {dim=0} return %y }"""
    with pytest.raises(LoweringError, match=r"cannot be fused with scan %s: .*: the orders differ"):
        lowered(text)


def test_what_feeds_a_scatter_fuses_and_what_follows_does_not() -> None:
    text = """graph(%x: f32[9], %i: i64[50], %v: f32[50]) {
      %a = mul %x, 2.0  %b = exp %v  %s = scatter %a, %i, %b {dim=0, reduce="add"}  %y = relu %s  return %y }"""
    fused = run_pipeline(parse_graph(text), "fuse")
    bodies = [[n.op.name for n in f.attrs["body"].nodes if n.operands] for f in fused.nodes if f.op.name == "fused"]
    assert bodies == [["mul", "exp", "scatter"], ["relu"]]
    with pytest.raises(LoweringError, match="cannot be fused with its consumer"):
        lowered(text)


def test_a_view_of_the_result_is_stored_through() -> None:
    text = """graph(%x: f32[4, 6], %i: i64[4, 5], %v: f32[4, 5]) {
      %s = scatter %x, %i, %v {dim=1, reduce="max"}  %y = reshape %s {shape=[4, 2, 3]}  return %y }"""
    assert "%out0[%u0, %row0//3, %row0%3]" in kernel(text)
