"""sink-gather: elementwise ops come before a gather that repeats elements."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512
from compiler.ir import ops
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.graph.sink_gather import SinkGather
from compiler.testing.checks import check_pass


def lerp(gathers: str, rows: int = 12, columns: int = 4) -> str:
    """Weighted sums of two columns of `%x`; `gathers` computes `%a` and `%b`."""
    return f"""graph(%x: f32[3, 5], %rows: i64[{rows}, 1], %low: i64[{columns}], %high: i64[{columns}], %t: f32[{columns}], %r: f32[{rows}, 1]) {{
      {gathers} }}"""


GATHERED_FIRST = lerp("""%a = index %x, %rows, %low {dims=[0, 1]}  %b = index %x, %rows, %high {dims=[0, 1]}
      %d = sub %b, %a  %m = mul %d, %t  %s = add %a, %m  %y = mul %s, %r
      return %y""")


def test_rows_are_gathered_after_columns_are_added() -> None:
    check_pass(
        "sink-gather",
        before=GATHERED_FIRST,
        after=lerp("""%a = index %x, %low {dims=[1]}  %b = index %x, %high {dims=[1]}
          %d = sub %b, %a  %m = mul %d, %t  %s = add %a, %m
          %i = reshape %rows {shape=[12]}  %g = index %s, %i {dims=[0]}  %y = mul %g, %r
          return %y"""),
        remark="%s is gathered along dimension 0 when it is computed",
    )


def test_gathers_with_one_source_share_it() -> None:
    """Neither of two gathers alone saves enough."""
    before = """graph(%x: f32[8], %i: i64[9], %j: i64[9]) {
      %a = take %x, %i {dim=0}  %b = exp %a  %c = take %x, %j {dim=0}  %d = exp %c  %y = sub %b, %d
      return %y }"""
    after = """graph(%x: f32[8], %i: i64[9], %j: i64[9]) {
      %e = exp %x  %b = take %e, %i {dim=0}  %d = take %e, %j {dim=0}  %y = sub %b, %d
      return %y }"""
    check_pass("sink-gather{max-share=0.8}", before=before, after=after)
    check_pass("sink-gather{max-share=0.7}", unchanged=before)


def test_a_gather_of_its_own_dimension_only() -> None:
    """The indices of `gather` differ from column to column."""
    check_pass(
        "sink-gather",
        unchanged="""graph(%x: f32[2, 5], %i: i64[2, 50]) {
          %a = gather %x, %i {dim=1}  %y = exp %a  return %y }""",
    )


STAY = {
    "as many elements": lerp("%a = index %x, %rows, %low {dims=[0, 1]}  %y = exp %a  return %y", rows=3, columns=5),
    "another value that varies": """graph(%x: f32[3, 5], %i: i64[12], %z: f32[12, 5]) {
      %a = take %x, %i {dim=0}  %y = add %a, %z  return %y }""",
    "other indices": """graph(%x: f32[3, 5], %i: i64[12], %j: i64[12]) {
      %a = take %x, %i {dim=0}  %b = take %x, %j {dim=0}  %y = sub %a, %b  return %y }""",
    "nothing follows": "graph(%x: f32[3, 5], %i: i64[12]) { %y = take %x, %i {dim=0}  return %y }",
    "indices with two dimensions": """graph(%x: f32[3, 5], %i: i64[6, 2]) {
      %a = take %x, %i {dim=0}  %y = exp %a  return %y }""",
}


@pytest.mark.parametrize("case", STAY)
def test_values_that_stay(case: str) -> None:
    check_pass("sink-gather", unchanged=STAY[case])


@pytest.mark.parametrize(("rows", "op", "count"), [(50, "mul A, A", 60), (50, "exp A", 1500), (0, "exp A", 2)])
def test_long_chains_and_results_without_elements(rows: int, op: str, count: int) -> None:
    """Each value is visited once: 60 squares have 2**60 paths, and Python's stack does not hold 1,500 calls."""
    steps = " ".join(f"%a{k + 1} = {op.replace('A', f'%a{k}')}" for k in range(count))
    before = parse_graph(
        f"graph(%x: f32[5], %i: i64[{rows}]) {{ %a0 = take %x, %i {{dim=0}} {steps} return %a{count} }}"
    )
    after = SinkGather().run(before, Context(AVX512))
    assert (after.outputs[0].op is ops.take) == (rows > 0)
