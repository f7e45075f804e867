"""Storing through views that leave elements out: what is split, what is never computed, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiler.analysis.index_sets import order_split_points
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.random_inputs import random_inputs
from compiler.ir.interpret.tile import run_program
from compiler.ir.symbolic.index_expr import dynamic_size
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_printer import print_kernel, print_program
from compiler.ir.torch_types import as_array
from compiler.ir.verify.program import verify_program
from compiler.lowering.kernel import lower_kernel
from compiler.lowering.program import lower
from compiler.passes.manager import run_pipeline

SUMS = "graph(%x: f32[5, 3]) {{ %m = constant_linear %x {{dim=1, matrix=[[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]}}  {rest}  return %y }}"
"""Two sums of neighbours for each of five rows."""

OPEN = """graph(size s in 4..1000 hint 100, %x: f32[(s + 1)//2, 3], %z: f32[s]) {
  %m = constant_linear %x {dim=1, matrix=[[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]}
  %r = reshape %m {shape=[((s + 1)//2)*2]}  %l = slice %r {dim=0, size=s}  %y = add %l, %z  return %y }"""
"""The same for an open number of sums."""


def kernel(rest: str) -> str:
    return " ".join(print_kernel(lower_kernel(parse_graph(SUMS.format(rest=rest)), "k")).split())


def check(graph: Graph) -> None:
    """The program of the graph as one kernel gives the graph's answers in float64."""
    program = lower(run_pipeline(graph, "fuse"))
    verify_program(program)
    assert len(program.steps) == 1
    given = random_inputs([n.type for n in graph.inputs], 0)
    (truth,) = (as_array(r) for r in interpret(graph, given, dtype=torch.float64))
    (got,) = run_program(program, given)
    np.testing.assert_allclose(got, truth, rtol=1e-5)


def test_the_last_step_stores_less() -> None:
    assert kernel("%r = reshape %m {shape=[10]}  %y = slice %r {dim=0, size=9}") == (
        "kernel @k(in %x: f32[5, 3], out %out0: f32[9]) { "
        "parallel %i0 in 0..4 { "
        "%v0 = %x[%i0, 0] %v1 = %x[%i0, 1] store %v0 + %v1, %out0[%i0*2] "
        "%v2 = %x[%i0, 2] store %v1 + %v2, %out0[%i0*2 + 1] } "
        "%v3 = %x[4, 0] %v4 = %x[4, 1] store %v3 + %v4, %out0[8] }"
    )


def test_steps_that_store_nothing_are_not_taken() -> None:
    text = kernel("%y = slice %m {dim=0, start=1, size=3}")
    assert "parallel %i0 in 0..3 {" in text
    assert "%x[%i0 + 1, 0]" in text
    assert "store %v0 + %v1, %out0[%i0, 0]" in text
    assert "%x[0, 0]" not in text


def test_rows_that_are_left_out_are_not_computed() -> None:
    text = kernel("%y = slice %m {dim=1, start=1, size=1}")
    assert text.count("store") == 1
    assert "%x[%i0, 0]" not in text


@pytest.mark.parametrize(
    "rest",
    [
        "%r = reshape %m {shape=[10]}  %y = slice %r {dim=0, start=3, size=4}",
        "%r = reshape %m {shape=[10]}  %s = slice %r {dim=0, start=1, size=8}  %y = slice %s {dim=0, start=2, size=5}",
        "%r = reshape %m {shape=[10]}  %s = slice %r {dim=0, size=9}  %e = exp %s  %y = relu %e",
        "%p = permute %m {dims=[1, 0]}  %s = slice %p {dim=1, start=2, size=3}  %y = relu %s",
        "%y = slice %m {dim=0, start=4, size=5, step=-1}",
    ],
)
def test_any_part_of_a_mix_is_one_kernel(rest: str) -> None:
    check(parse_graph(SUMS.format(rest=rest)))


def test_what_two_loops_decide_together_is_refused() -> None:
    text = """graph(%x: f32[3, 4, 2]) { %m = constant_linear %x {dim=2, matrix=[[1.0, 1.0]]}
      %r = reshape %m {shape=[12]}  %y = slice %r {dim=0, size=7}  return %y }"""
    with pytest.raises(LoweringError, match=r"the guard on .* is not an increasing affine function of one loop"):
        lower_kernel(parse_graph(text), "k")


@pytest.mark.parametrize("rows", [5, 6, 7, 8])
def test_of_an_open_length_each_point_of_the_last_step_has_a_loop(rows: int) -> None:
    """How many of the last pair are stored is known when the kernel runs."""
    program = lower(run_pipeline(parse_graph(OPEN), "fuse"))
    verify_program(program)
    text = " ".join(print_program(program).split())
    assert "%i0 in 0..s//2 {" in text
    assert text.count("store") == 3
    x = np.arange(3.0 * -(-rows // 2), dtype=np.float32).reshape(-1, 3)
    z = np.ones(rows, np.float32)
    (got,) = run_program(program, [x, z])
    np.testing.assert_array_equal(got - z, np.stack([x[:, 0] + x[:, 1], x[:, 1] + x[:, 2]], 1).reshape(-1)[:rows])


def test_rejects_split_points_of_unknown_order() -> None:
    """A dynamic loop may end before or after a constant split point."""
    with pytest.raises(LoweringError, match="cannot order"):
        order_split_points(dynamic_size("s", 1, 9, 5), {3})
