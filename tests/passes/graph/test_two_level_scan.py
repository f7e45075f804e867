"""Block-scans: long rows in blocks, with the totals of the blocks before."""

from __future__ import annotations

import pytest

from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass


def test_a_long_row_is_scanned_in_blocks() -> None:
    check_pass(
        "two-level-scan{min-length=17,block-size=4}",
        before="graph(%x: f64[64]) { %y = cumsum %x {dim=0} return %y }",
        after="""graph(%x: f64[64]) {
          %reshape_0: f64[16, 4] = reshape %x {shape=[16, 4]}
          %cumsum_0 = cumsum %reshape_0 {dim=1}
          %sum_0 = sum %reshape_0 {dims=[1], keepdim=true}
          %cumsum_1 = cumsum %sum_0 {dim=0, exclusive=true}
          %add_0 = add %cumsum_0, %cumsum_1
          %y: f64[64] = reshape %add_0 {shape=[64]}
          return %y }""",
    )


def test_each_thread_has_a_block_for_every_lane() -> None:
    for length, blocks in ((16, 8), (32, 16), (512, 64)):
        graph = parse_graph(f"graph(%x: f64[{length}]) {{ %y = cumsum %x {{dim=0}} return %y }}")
        after = run_pipeline(graph, "two-level-scan{min-length=16,block-size=4}")
        assert next(n for n in after if n.op.name == "reshape").shape[0] == blocks


@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("exclusive", ["false", "true"])
@pytest.mark.parametrize("length", [40, 43])
@pytest.mark.parametrize("op", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_every_kind_of_scan_keeps_its_meaning(op: str, length: int, exclusive: str, reverse: str) -> None:
    attrs = f"dim=1, reverse={reverse}, exclusive={exclusive}"
    before = parse_graph(f"graph(%x: f32[2, {length}, 1]) {{ %y = {op} %x {{{attrs}}} return %y }}")
    after = run_pipeline(before, "two-level-scan{min-length=16,block-size=8}")
    assert len(after.nodes) > len(before.nodes)
    check_equivalent(before, after)


def test_what_is_carried_is_wide_until_the_end() -> None:
    after = run_pipeline(
        parse_graph("graph(%x: f32[16]) { %y = cumsum %x {dim=0} return %y }"),
        "two-level-scan{min-length=16,block-size=4}",
    )
    assert [n.dtype.name for n in after if n.op.name in ("cumsum", "sum", "add")] == ["f64"] * 4


def test_what_blocks_leave_is_scanned_behind_them() -> None:
    check_pass(
        "two-level-scan{min-length=18,block-size=4}",
        before="graph(%x: f64[35]) { %y = cummax %x {dim=0} return %y }",
        after="""graph(%x: f64[35]) {
          %slice_0: f64[34] = slice %x {dim=0, size=34}
          %reshape_0: f64[17, 2] = reshape %slice_0 {shape=[17, 2]}
          %cummax_0: f64[17, 2] = cummax %reshape_0 {dim=1}
          %amax_0: f64[17, 1] = amax %reshape_0 {dims=[1], keepdim=true}
          %cummax_1: f64[17, 1] = cummax %amax_0 {dim=0, exclusive=true}
          %maximum_0: f64[17, 2] = maximum %cummax_0, %cummax_1
          %reshape_1: f64[34] = reshape %maximum_0 {shape=[34]}
          %slice_1: f64[1] = slice %x {dim=0, start=34, size=1}
          %cummax_2: f64[1] = cummax %slice_1 {dim=0}
          %amax_1: f64[1, 1] = amax %amax_0 {dims=[0], keepdim=true}
          %reshape_2: f64[1] = reshape %amax_1 {shape=[1]}
          %maximum_1: f64[1] = maximum %cummax_2, %reshape_2
          %y: f64[35] = cat %reshape_1, %maximum_1
          return %y }""",
    )


def test_a_scan_says_itself_how_its_blocks_are_joined() -> None:
    after = run_pipeline(
        parse_graph("graph(%x: f32[32]) { %y = logcumsumexp %x {dim=0} return %y }"),
        "two-level-scan{min-length=16,block-size=4}",
    )
    assert [n.shape for n in after if n.op.name == "logcumsumexp"] == [(16, 2), (16, 1)]


def test_short_rows_and_many_rows_stay() -> None:
    for shape in ("16", "8, 64"):
        text = f"graph(%x: f32[{shape}]) {{ %y = cumsum %x {{dim={shape.count(',')}}} return %y }}"
        check_pass("two-level-scan{min-length=32,block-size=8}", unchanged=text)
