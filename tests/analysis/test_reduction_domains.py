"""taps: loops over an open image are split where its windows begin to reach beyond it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from compiler.analysis.index_sets import provable_split_points
from compiler.analysis.reduction_domains import is_never_empty, split_points
from compiler.cost.machine import AVX512
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.tile import run_program
from compiler.ir.symbolic.index_expr import dynamic_size
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_program
from compiler.ir.torch_types import as_array
from compiler.ir.verify.program import verify_program
from compiler.lowering.program import lower
from compiler.passes.manager import run_pipeline

STRIDED = """graph(size s in 4..500 hint 84, %x: f32[1, 2, s], %w: f32[3, 2, 3]) {
  %y = conv %x, %w {stride=[2], dilation=[1], before=[1], after=[1]}  return %y }"""
"""Whether its last window reaches beyond the image depends on whether the size is odd."""


def test_the_last_window_has_a_loop_of_its_own_that_may_be_empty() -> None:
    text = " ".join(print_program(lower(run_pipeline(parse_graph(STRIDED), "fuse"))).split())
    for loop in (
        "%acc0 = reduce add %r0 in 0..2, %r1 in 1..3 { yield %x0[0, %r0, %r1 - 1] * %x1[%i0, %r0, %r1] }",
        "%i2 in 0..s//2 - 1 { %acc1 = reduce add %r2 in 0..2, %r3 in 0..3 {",
        "%i4 in 0..(s + 1)//2 - s//2 { %acc2 = reduce add %r4 in 0..2, %r5 in 0..2 {",
    ):
        assert loop in text
    assert "where" not in text


@pytest.mark.parametrize("length", [4, 5, 8, 11])
def test_every_size_has_the_answers_of_the_graph(length: int) -> None:
    program = lower(run_pipeline(parse_graph(STRIDED), "fuse"))
    verify_program(program)
    whole = parse_graph(STRIDED).specialize({"s": length})
    given = random_inputs([n.type for n in whole.inputs], 0)
    (truth,) = (as_array(r) for r in interpret(whole, given, dtype=torch.float64))
    (got,) = run_program(program, given)
    np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)


OVERLAPPING = """graph(%x: f32[1, 2, 3, 4, 6, 7]) {
  %y = col2im %x {stride=[1, 1], dilation=[1, 1], start=[0, 0], size=[8, 10]}  return %y }"""


@pytest.mark.parametrize(
    ("max_parts", "rows", "columns"),
    [
        (35, {1, 2, 6, 7}, {1, 2, 3, 7, 8, 9}),
        (34, {2, 6}, {1, 2, 3, 7, 8, 9}),
        (20, {2, 6}, {3, 7}),
    ],
)
def test_beyond_a_number_of_parts_borders_are_guarded(max_parts: int, rows: set[int], columns: set[int]) -> None:
    graph = parse_graph(OVERLAPPING)
    assert split_points(graph, graph.outputs[0], max_parts) == {2: rows, 3: columns}


@pytest.mark.parametrize("max_parts", [35, 34, 20])
def test_guarded_borders_have_the_answers_of_the_graph(max_parts: int) -> None:
    graph, machine = parse_graph(OVERLAPPING), replace(AVX512, max_loop_parts=max_parts)
    program = lower(run_pipeline(graph, "fuse"), machine=machine)
    verify_program(program)
    given = random_inputs([n.type for n in graph.inputs], 0)
    (truth,) = (as_array(r) for r in interpret(graph, given, dtype=torch.float64))
    (got,) = run_program(program, given)
    np.testing.assert_allclose(got, truth, rtol=1e-5, atol=1e-6)
    assert ("where" in print_program(program)) is (max_parts < 35)


def test_places_that_may_lie_on_either_side_of_one_another_are_left_out() -> None:
    s, t = dynamic_size("s", 4, 500, 84), dynamic_size("t", 4, 500, 84)
    assert provable_split_points(s, {1, s - 1, s + 2, 0}) == {1, s - 1}
    assert provable_split_points(s + t, {s, t, 1}) in ({1, s}, {1, t})


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("size=[3], stride=[2], dilation=[1]", True),
        ("size=[3], stride=[2], dilation=[1], before=[1], after=[1]", True),
        ("size=[3], stride=[1], dilation=[1], before=[2], after=[2]", True),
        ("size=[3], stride=[1], dilation=[1], before=[3], after=[0]", False),  # the first lies before the input
        ("size=[3], stride=[1], dilation=[1], before=[0], after=[3]", False),
        ("size=[2], stride=[1], dilation=[6], before=[5], after=[5]", False),  # the input lies between two taps
        ("size=[2], stride=[1], dilation=[5], before=[5], after=[4]", True),
    ],
)
def test_windows_without_elements(window: str, expected: bool) -> None:
    (n,) = parse_graph(f"graph(%x: i32[2, 5]) {{ %y = max_pool %x {{{window}}}  return %y }}").outputs
    assert is_never_empty(n) is expected
    attrs = {k: n.attrs[k] for k in ("size", "stride", "dilation", "before", "after")}
    (size,), (stride,), (dilation,) = (attrs[k] for k in ("size", "stride", "dilation"))
    before = attrs["before"][0] if attrs["before"] else 0
    reads = [[i * stride + r * dilation - before for r in range(size)] for i in range(n.shape[-1])]
    assert all(any(0 <= x < 5 for x in window) for window in reads) is expected


def test_windows_over_dynamic_sizes() -> None:
    text = "graph(size s in 4..500 hint 84, %x: f32[1, s]) {{ %y = max_pool %x {{{}}}  return %y }}"
    for window, expected in (
        ("size=[3], stride=[2], dilation=[1], before=[1], after=[1]", True),
        ("size=[3], stride=[2], dilation=[1], before=[3], after=[1]", False),
    ):
        (n,) = parse_graph(text.format(window)).outputs
        assert is_never_empty(n) is expected
