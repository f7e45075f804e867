"""Windows along one dimension after the other: associative reductions, order by cost, and what stays."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512, shipped_machine
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.graph.separate_windows import best_order
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_equivalent, check_pass

ANY_COST = "separate-windows{max-time-ratio=1000.0}"


def pool(shape: str, op: str = "max_pool", size: str = "3, 3", stride: str = "1, 1", dilation: str = "1, 1") -> str:
    """A graph of one pooling."""
    attrs = f"{{size=[{size}], stride=[{stride}], dilation=[{dilation}]}}"
    return f"graph(%x: {shape}) {{ %y = {op} %x {attrs} return %y }}"


def test_maxima_of_rows_then_of_columns() -> None:
    check_pass(
        ANY_COST,
        before=pool("f32[2, 8, 6]", size="5, 3"),
        after="""graph(%x: f32[2, 8, 6]) {
          %unfold_0: f32[2, 4, 6, 5] = unfold %x {dim=1, size=5}
          %amax_0: f32[2, 4, 6] = amax %unfold_0 {dims=[3]}
          %unfold_1: f32[2, 4, 4, 3] = unfold %amax_0 {dim=2, size=3}
          %y: f32[2, 4, 4] = amax %unfold_1 {dims=[3]}
          return %y }""",
        remark="windows reduced along dimension 1, then dimension 2",
    )


@pytest.mark.parametrize(
    "text",
    [
        pool("f32[2, 9, 11]", "sum_pool", stride="1, 2", dilation="2, 1"),
        pool("i32[2, 9, 9]", "sum_pool"),
        pool("bf16[2, 9, 9]"),
        pool("f32[1, 7, 8, 9]", size="3, 2, 3", stride="1, 1, 1", dilation="1, 1, 2"),
    ],
)
def test_every_reduction_keeps_its_meaning(text: str) -> None:
    before = parse_graph(text)
    after = run_pipeline(before, ANY_COST)
    assert len(after.nodes) > len(before.nodes)
    check_equivalent(before, after)


def test_the_dimension_that_shrinks_most_is_first() -> None:
    (n,) = parse_graph(pool("f32[64, 96, 96]", size="5, 5", stride="1, 4")).outputs
    assert [w.dim for w in best_order(n, AVX512, 1000.0)] == [2, 1]


def test_overlap_and_launches_decide() -> None:
    (overlapping,) = parse_graph(pool("f32[64, 96, 96]", size="5, 5")).outputs
    (apart,) = parse_graph(pool("f32[64, 96, 96]", size="4, 4", stride="4, 4")).outputs
    (small,) = parse_graph(pool("f32[1, 8, 8]", size="5, 5")).outputs
    assert [bool(best_order(n, AVX512, 1.0)) for n in (overlapping, apart, small)] == [True, False, False]
    assert not best_order(overlapping, shipped_machine("h100"), 1.0)


@pytest.mark.parametrize(
    "text",
    [
        pool("bf16[2, 9, 9]", "sum_pool"),  # each step would round
        pool("f32[2, 9]", size="3", stride="1", dilation="1"),
        "graph(%x: f32[4, 5, 6]) { %y = sum %x {dims=[1, 2]} return %y }",
        "graph(%x: f32[4, 8], %w: f32[8, 5]) { %y = matmul %x, %w return %y }",
    ],
)
def test_other_reductions_stay(text: str) -> None:
    check_pass(ANY_COST, unchanged=text)
