"""Decompose: composites become what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compiler.errors import Loc
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Op, input_node
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Composite
from compiler.ir.types import TensorType, f32
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass


@pytest.fixture(autouse=True, scope="module")
def composites() -> Iterator[None]:
    """Ops that expand into others, into composites, and into nothing."""

    def declare(name: str, expand: Callable[..., Node], reference: Callable[..., Any]) -> Op:
        return declare_op(name, "x: float", Composite(expand), type_rule=lambda s: s.types[0], reference=reference)

    halve = declare("test_halve", lambda n, x: ops.mul(x, 0.5), lambda x: x / 2)
    declare("test_nested", lambda n, x: ops.neg(halve(halve(x))), lambda x: -x / 4)
    declare("test_nothing", lambda n, x: x, lambda x: x)
    yield
    for name in ("test_halve", "test_nested", "test_nothing"):
        del OPS[name]


def test_nested_composites_expand_to_the_end() -> None:
    check_pass(
        "decompose",
        before="graph(%x: f32[4]) { %a = exp %x  %y = test_nested %a  return %y }",
        after="graph(%x: f32[4]) { %a = exp %x  %h = mul %a, 0.5  %q = mul %h, 0.5  %y = neg %q  return %y }",
    )


def test_an_expansion_may_be_the_operand() -> None:
    before = "graph(%x: f32[4]) { %y = test_nothing %x  return %y }"
    check_pass("decompose", before=before, after="graph(%x: f32[4]) { return %x }")


def test_kept_ops_stay_whole() -> None:
    check_pass(
        "decompose{keep=[test_halve]}",
        before="graph(%x: f32[4]) { %y = test_nested %x  return %y }",
        after="graph(%x: f32[4]) { %h = test_halve %x  %q = test_halve %h  %y = neg %q  return %y }",
    )


def test_new_nodes_come_from_the_users_line() -> None:
    x = input_node("x", TensorType(f32, (4,)), Loc("model.py", 1))
    graph = Graph((x,), (OPS["test_nested"](x, loc=Loc("model.py", 7)),))
    made = [n for n in run_pipeline(graph, "decompose").nodes if n.operands]
    assert {n.loc for n in made} == {Loc("model.py", 7)}
    assert len(made) == 3
