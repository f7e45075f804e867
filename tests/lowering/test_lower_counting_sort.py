"""Counting sorts as loops: elements are counted in their buckets and moved to them in order."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import LoweringError
from compiler.ir.interpret.tile import run_program
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Kernel
from compiler.lowering.kernel import lower_kernel
from compiler.lowering.program import lower
from compiler.passes.manager import run_pipeline

SORT = "graph(%x: f32[3, 70], %k: i32[3, 70]) { %d = and %k, 7  %y = counting_sort %x, %d {buckets=8}  return %y }"


def lowered(text: str) -> Kernel:
    return lower_kernel(parse_graph(text), "k")


def kernel(text: str) -> str:
    return " ".join(print_kernel(lowered(text)).split())


def test_elements_take_the_next_position_of_their_bucket() -> None:
    assert kernel(SORT) == (
        "kernel @k(in %x: f32[3, 70], in %k: i32[3, 70], out %out0: f32[3, 70]) { parallel %i0 in 0..3 { "
        "local %next0: i32[9] for %b0 in 0..9 { store 0, %next0[%b0] } "
        "for %k0 in 0..70 { %row0 = cast<i64>(%k[%i0, %k0] & 7) "
        "%s0 = %next0[%row0 + 1] store %s0 + 1, %next0[%row0 + 1] } "
        "for %b1 in 0..8 { %s1 = %next0[%b1] %s2 = %next0[%b1 + 1] store %s1 + %s2, %next0[%b1 + 1] } "
        "for %k1 in 0..70 { %row1 = cast<i64>(%k[%i0, %k1] & 7) %s3 = %next0[%row1] %s4 = cast<i64>(%s3) "
        "store %x[%i0, %k1], %out0[%i0, %s4] store %s3 + 1, %next0[%row1] } } }"
    )


def test_keys_that_may_be_outside_are_checked() -> None:
    text = "graph(%x: f32[70], %k: i64[70]) { %y = counting_sort %x, %k {buckets=8}  return %y }"
    assert kernel(text).count("check %v") == 2
    program = lower(run_pipeline(parse_graph(text), "fuse"))
    x, keys = np.arange(70, dtype=np.float32), np.arange(70) % 8
    (got,) = run_program(program, [x, keys])
    assert np.array_equal(got, x[np.argsort(keys, kind="stable")])
    for wrong in (-1, 8):
        keys[3] = wrong
        with pytest.raises(IndexError):
            run_program(program, [x, keys])


def test_what_is_sorted_stays_as_it_is() -> None:
    """Elements are read after others were stored: the result cannot be the memory of an input."""
    assert not aliasable_pairs(lowered(SORT))


def test_what_feeds_a_sort_fuses_and_what_follows_does_not() -> None:
    text = SORT.replace("return %y", "%z = relu %y  return %z").replace("counting_sort %x", "counting_sort %e")
    text = text.replace("{ %d", "{ %e = exp %x  %d")
    fused = run_pipeline(parse_graph(text), "fuse")
    bodies = [[n.op.name for n in f.attrs["body"].nodes if n.operands] for f in fused.nodes if f.op.name == "fused"]
    assert bodies == [["exp", "and", "counting_sort"], ["relu"]]
    with pytest.raises(LoweringError, match="cannot be fused with its consumer"):
        lowered(text)


def test_a_scan_is_no_part_of_a_sort() -> None:
    text = SORT.replace("{ %d", "{ %s = cumsum %x {dim=1}  %d").replace("counting_sort %x", "counting_sort %s")
    with pytest.raises(LoweringError, match=r"cannot be fused with scan %s: .*: it goes through a row twice"):
        lowered(text)


def test_a_view_of_the_result_is_stored_through() -> None:
    text = SORT.replace("return %y", "%z = reshape %y {shape=[3, 7, 10]}  return %z")
    assert "%out0[%i0, %s4//10, %s4%10]" in kernel(text)
