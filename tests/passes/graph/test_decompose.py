"""Decompose: composites become what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from compiler.cost.machine import Machine
from compiler.errors import Loc
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Op, input_node
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Composite, CountingSort, Gather, Opaque, Reduction
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.types import TensorType, f32
from compiler.passes.base import Context
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


ROWS = "graph(%x: f32[64, {n}]) {{ %p = sort %x {{dim=1}}  %y = tuple_get %p {{index=0}}  return %y }}"


def test_short_rows_are_sorted_by_a_network() -> None:
    check_pass(
        "decompose",
        before="graph(%x: i32[64, 2]) { %p = sort %x {dim=1}  %y = tuple_get %p {index=0}  return %y }",
        after="""graph(%x: i32[64, 2]) {
          %m = permute %x {dims=[0, 1]}  %r = reshape %m {shape=[64, 2]}  %v = reshape %r {shape=[64, 2, 1]}
          %a = slice %v {dim=1, start=0, size=1, step=1}  %b = reshape %a {shape=[64, 1]}
          %c = slice %v {dim=1, start=1, size=1, step=1}  %d = reshape %c {shape=[64, 1]}
          %l = minimum %b, %d  %e = reshape %l {shape=[64, 1, 1]}
          %h = maximum %b, %d  %f = reshape %h {shape=[64, 1, 1]}
          %s = cat %e, %f {dim=2}  %t = reshape %s {shape=[64, 2]}
          %u = slice %t {dim=1, start=0, size=2, step=1}
          %w = reshape %u {shape=[64, 2]}  %y = permute %w {dims=[0, 1]}
          return %y }""",
        remark="sort expanded to 16 ops, ",
    )


def test_a_call_that_is_faster_stays() -> None:
    slow_launches = replace(Machine(), launch_seconds=1e-3)
    check_pass("decompose", unchanged=ROWS.format(n=64), remark="sort runs in PyTorch", machine=slow_launches)
    without_calls = run_pipeline(
        parse_graph(ROWS.format(n=64)), "decompose{calls=false}", Context(machine=slow_launches)
    )
    assert not any(isinstance(n.structure, Opaque) for n in without_calls.nodes)


def test_ops_that_compile_for_longer_than_they_save_are_not_expanded_to() -> None:
    slow_compilation = replace(Machine(), expanded_op_seconds=1e-3)
    check_pass("decompose", unchanged=ROWS.format(n=64), remark="sort runs in PyTorch", machine=slow_compilation)


def test_long_rows_are_sorted_by_digits() -> None:
    def passes(n: int, dtype: str) -> int:
        graph = run_pipeline(parse_graph(ROWS.replace("f32", dtype).format(n=n)), "decompose")
        return sum(isinstance(n.structure, CountingSort) for n in graph.nodes)

    assert [passes(n, "f32") for n in (64, 100_000)] == [0, 4]
    assert passes(100_000, "bf16") == 2


def test_results_that_nothing_reads_are_not_computed() -> None:
    graph = run_pipeline(parse_graph(ROWS.format(n=64)), "decompose")
    assert not any(isinstance(n.structure, Gather) for n in graph.nodes)
    assert all(n.dtype.bits <= 32 for n in graph.nodes if n.operands and n.op.name == "minimum")


def test_few_elements_are_selected_in_rounds() -> None:
    text = "graph(%x: f32[64, 999]) {{ %p = topk %x {{dim=1, k={k}}}  %y = tuple_get %p {{index=1}}  return %y }}"
    rounds = {}
    for k in (2, 64):
        graph = run_pipeline(parse_graph(text.format(k=k)), "decompose")
        rounds[k] = sum(isinstance(n.structure, Reduction) for n in graph.nodes)
    assert rounds == {2: 2, 64: 0}
