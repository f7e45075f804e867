"""Further results of a kernel: rows that lie across the loops of its root."""

from __future__ import annotations

import pytest

from compiler.errors import LoweringError
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel
from compiler.lowering.kernel import lower_kernel
from compiler.testing.checks import check_pass

ROWS = """graph(%x: f32[6, 40]) {
  %e = exp %x  %s = sum %e {dims=[1], keepdim=true}  return %s, %e }"""


def test_a_row_is_a_result_beside_its_sum() -> None:
    text = print_kernel(lower_kernel(parse_graph(ROWS), "k"))
    assert text.split() == [
        "kernel",
        "@k(in",
        "%x:",
        "f32[6,",
        "40],",
        "out",
        "%out0:",
        "f32[6,",
        "1],",
        "out",
        "%out1:",
        "f32[6,",
        "40])",
        "{",
        "parallel",
        "%i0",
        "in",
        "0..6",
        "{",
        "local",
        "%local0:",
        "f32[40]",
        "for",
        "%k1",
        "in",
        "0..40",
        "{",
        "store",
        "exp(%x[%i0,",
        "%k1]),",
        "%local0[%k1]",
        "}",
        "%acc0",
        "=",
        "reduce",
        "add",
        "%r0",
        "in",
        "0..40",
        "{",
        "yield",
        "%local0[%r0]",
        "}",
        "store",
        "%acc0,",
        "%out0[%i0,",
        "0]",
        "for",
        "%k0",
        "in",
        "0..40",
        "{",
        "store",
        "%local0[%k0],",
        "%out1[%i0,",
        "%k0]",
        "}",
        "}",
        "}",
    ]


def test_sums_and_the_values_that_others_read_are_one_kernel() -> None:
    check_pass(
        "fuse",
        before=ROWS,
        after="""graph(%x: f32[6, 40]) {
          %f = fused %x {body=graph @sum(%x0: f32[6, 40]) {
            %e = exp %x0  %s = sum %e {dims=[1], keepdim=true}  return %s, %e }}
          %s = tuple_get %f {index=0}  %e = tuple_get %f {index=1}
          return %s, %e }""",
    )


@pytest.mark.parametrize(
    "text",
    [
        "graph(%x: f32[6, 40]) { %e = exp %x  %s = sum %e {dims=[0]}  return %s, %e }",  # columns
        "graph(%x: f32[6, 7, 8]) { %e = exp %x  %s = sum %e {dims=[0, 2]}  return %s, %e }",  # rows apart from each other
        "graph(%x: f32[8]) { %e = exp %x  %b = expand %e {shape=[6, 8]}  %s = sum %b {dims=[1]}  return %s, %e }",
    ],
)
def test_rows_that_are_not_contiguous_or_computed_again(text: str) -> None:
    with pytest.raises(LoweringError, match="not indexed by the loops"):
        lower_kernel(parse_graph(text), "k")
