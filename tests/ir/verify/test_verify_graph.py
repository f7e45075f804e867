"""Each rule of Graph IR refuses what it is for, and says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler.errors import Loc, VerifyError
from compiler.ir import ops
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.types import Layout, TensorType, f32, i64
from compiler.ir.verify.graph import verify_graph

X = input_node("x", TensorType(f32, (4,)))
Y = ops.exp(X, loc=Loc("model.py", 12)).with_name("y")


def refuse(graph: Graph, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_graph(graph)


def test_a_valid_graph_passes() -> None:
    verify_graph(parse_graph("graph(%x: f32[n, 4]) { %s = softmax %x {dim=1}  %y = add %s, 1.0  return %y, %x }"))


def test_a_wrong_type_is_named_with_the_rule_and_the_line() -> None:
    wrong = replace(Y, result_type=TensorType(f32, (5,)))
    refuse(
        Graph((X,), (wrong,)),
        r"\[types_follow_from_operands\] %y: f32\[5\] = exp\(%x\) at model.py:12: .* is f32\[4\]",
    )


def test_operands_an_op_does_not_take_are_named() -> None:
    wrong = replace(Y, operands=(replace(X, result_type=TensorType(i64, (4,))),))
    refuse(Graph(wrong.operands, (wrong,)), "operand x must be float, not i64")
    refuse(Graph((X,), (replace(Y, operands=(X, X)),)), "takes 1 operands")
    refuse(Graph((X,), (replace(Y, attrs={"dim": 1}),)), "unknown dim")


def test_a_layout_is_no_matter_of_the_type_rule() -> None:
    verify_graph(Graph((X,), (replace(Y, result_type=TensorType(f32, (4,), Layout.from_order([0]))),)))


def test_inputs_are_distinct_and_complete() -> None:
    refuse(Graph((X, input_node("x", X.type)), (Y,)), "2 inputs have the name %x")
    refuse(Graph((), (Y,)), "%x: .* input node is used but is not an input of the graph")
    refuse(Graph((X, Y), (Y,)), "is an input of the graph but not an input node")


def test_constants_have_the_type_of_their_data() -> None:
    three = constant_node(np.zeros(3, np.float32))
    refuse(Graph((), (replace(three, result_type=TensorType(f32, (4,))),)), r"its data has type f32\[3\]")
    refuse(Graph((), (replace(three, attrs={"value": None}),)), "must be a ConstantData")
    refuse(
        Graph((), (replace(three, attrs={"value": ConstantData(i64, np.zeros(3, np.int64))}),)),
        r"its data has type i64\[3\]",
    )


def test_aliases_fit() -> None:
    verify_graph(Graph((X,), (Y,), output_aliases={0: 0}))
    refuse(
        Graph((X,), (ops.reshape(Y, shape=(2, 2)),), output_aliases={0: 0}),
        "is written back to %x: .* of a different type",
    )
    refuse(Graph((X,), (Y,), output_aliases={1: 0}), "alias 1 -> 0: there are 1 outputs")
    refuse(Graph((X,), (Y, Y), output_aliases={0: 0, 1: 0}), "input number 0 is written back 2 times")


def test_several_results_are_read_through_items() -> None:
    pair = ops.topk(X, k=2, dim=0)
    refuse(Graph((X,), (pair,)), "has several results; return one with tuple_get")
    wrong = Node(Y.op, (pair,), {}, X.type)
    refuse(Graph((X,), (wrong,)), "has several results; read one with tuple_get")


def test_bodies_are_verified_too() -> None:
    a = input_node("a", X.type)
    fused = ops.fused(X, body=Graph((a,), (ops.exp(a),)))
    verify_graph(Graph((X,), (fused,)))
    inner = Graph((a,), (replace(ops.exp(a), attrs={"dim": 1}),))
    refuse(Graph((X,), (replace(fused, attrs={"body": inner}),)), "in its body: .* unknown dim")
    narrow = Graph((input_node("a", TensorType(f32, (1,))),), (a,))
    refuse(Graph((X,), (replace(fused, attrs={"body": narrow}),)), r"the body expects \(f32\[1\]\), got \(f32\[4\]\)")


def test_a_node_computed_from_itself_is_found() -> None:
    loop = replace(Y)
    object.__setattr__(loop, "operands", (loop,))
    refuse(Graph((X,), (loop,)), "depends on itself")


def test_unregistered_ops_are_found() -> None:
    stray = replace(Y.op, name="stray")
    refuse(Graph((X,), (replace(Y, op=stray),)), "op stray is not in the registry")
