"""CSE: equal nodes become one, and only equal ones."""

from __future__ import annotations

import numpy as np

from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import constant_node, input_node
from compiler.ir.types import TensorType, f32
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass


def test_equal_nodes_merge() -> None:
    check_pass(
        "cse",
        before="graph(%x: f32[4]) { %a = exp %x  %b = exp %x  %c = neg %a  %d = neg %b  %y = add %c, %d  return %y }",
        after="graph(%x: f32[4]) { %a = exp %x  %c = neg %a  %y = add %c, %c  return %y }",
    )


def test_equal_small_constants_merge() -> None:
    check_pass(
        "cse",
        before="""graph(%x: f32[2]) {
            %c = constant f32[2] [1, 2]
            %d = constant f32[2] [1, 2]
            %y = mul %c, %x
            %z = mul %d, %x
            return %y, %z
        }""",
        after="graph(%x: f32[2]) { %c = constant f32[2] [1, 2]  %y = mul %c, %x  return %y, %y }",
    )


def test_attributes_tell_nodes_apart() -> None:
    text = "graph(%x: f32[2, 2]) { %a = sum %x {dims=[0]}  %b = sum %x {dims=[1]}  %y = add %a, %b  return %y }"
    check_pass("cse", unchanged=text)


def test_zeros_of_either_sign_differ() -> None:
    check_pass("cse", unchanged="graph(%x: f32[2]) { %a = add %x, 0.0  %b = add %x, -0.0  %y = div %a, %b  return %y }")


def test_large_constants_merge_when_they_share_memory() -> None:
    weights = np.zeros((64, 64), np.float32)
    x = input_node("x", TensorType(f32, (64, 64)))
    for other, nodes in ((weights, 4), (weights.copy(), 5)):
        graph = Graph((x,), (ops.add(ops.add(x, constant_node(weights)), constant_node(other)),))
        assert len(run_pipeline(graph, "cse").nodes) == nodes
