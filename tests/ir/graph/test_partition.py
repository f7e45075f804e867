"""Graphs in which data decides sizes: where they are cut, and what the parts mean together."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from compiler.errors import ArgumentError, VerifyError
from compiler.ir.graph.partition import needs_partitioning, partition
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.interpret.graph import bind_reference, interpret
from compiler.ir.interpret.partition_executor import PartitionExecutor
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph

NONZERO = 'eager %m {overload="aten.nonzero.default", args=["%0"], dtypes=[i64], shapes=[[u0, 1]]}'

CHOSEN = f"""graph @g(%x: f32[n], %w: f32[4]) {{
  %m = isinf %x
  %k: i64[u0, 1] = {NONZERO}
  %q = reshape %k {{shape=[u0]}}
  %e = exp %x
  %v = take %e, %q {{dim=0}}
  %s = sum %w {{dims=[0]}}
  return %v, %s, %w
}}"""


def texts(source: str) -> list[str]:
    return [print_graph(p.graph) for p in partition(parse_graph(source))]


def test_a_part_ends_where_data_tells_a_size() -> None:
    """What only the second part wants, it computes; the call's result and the sizes come in."""
    first, second = texts(CHOSEN)
    assert first == "graph @g_0(%x: f32[n]) {\n  %m: bool[n] = isinf %x\n  return %m\n}"
    assert second == "\n".join([
        "graph @g_1(%x: f32[n], %k: i64[u0, 1], %w: f32[4]) {",
        "  %e: f32[n] = exp %x",
        "  %q: i64[u0] = reshape %k {shape=[u0]}",
        "  %v: f32[u0] = take %e, %q",
        "  %s: f32[] = sum %w {dims=[0]}",
        "  return %v, %s",
        "}",
    ])  # fmt: skip


def test_what_both_parts_read_is_computed_once() -> None:
    first, second = texts(
        CHOSEN.replace("isinf %x", "isinf %e").replace("  %e = exp %x\n", "").replace("{\n", "{\n  %e = exp %x\n", 1)
    )
    assert "return %e, %m" in first
    assert "exp" not in second


def test_constants_belong_to_each_part() -> None:
    source = """graph @g(%x: f32[n]) {
  %c = constant f32[2] [1.0, 2.0]
  %t = exp %c
  %m = isinf %x
  %k: i64[u0, 1] = eager %m {overload="aten.nonzero.default", args=["%0"], dtypes=[i64], shapes=[[u0, 1]]}
  %p = expand %t {shape=[u0, 2]}
  return %p, %t, %k
}"""
    graph = parse_graph(source)
    (_, second) = partition(graph)
    assert [n.op.name for n in second.graph.nodes] == ["input", "constant", "exp", "expand"]
    values = interpret(graph, [torch.tensor([1.0, float("inf"), float("-inf")])])
    torch.testing.assert_close(values[0], torch.tensor([1.0, 2.0]).exp().expand(2, 2))


def test_a_size_that_two_calls_tell_is_told_by_the_first() -> None:
    source = CHOSEN.replace("%q =", f"%k2: i64[u0, 1] = {NONZERO}\n  %q =").replace("reshape %k ", "reshape %k2 ")
    source = source.replace("return %v", "return %k, %v")
    parts = partition(parse_graph(source))
    assert [[c.name for c in p.eager_calls] for p in parts] == [["k"], []]
    assert "%k2: i64[u0, 1] = eager" in print_graph(parts[1].graph)


def test_a_size_alone_needs_what_tells_it() -> None:
    source = f"graph @g(%m: bool[n]) {{\n  %k: i64[u0, 1] = {NONZERO}\n  %i = iota {{size=u0}}\n  return %i, %k\n}}"
    first, second = partition(parse_graph(source))
    assert (first.outputs, len(first.eager_calls)) == ((), 1)
    assert [n.name for n in second.inputs] == ["k"]
    with pytest.raises(VerifyError, match="unbacked symbol u1 has no definition"):
        partition(parse_graph(source.replace("size=u0", "size=u1")))


def test_numbers_become_sizes() -> None:
    source = """graph @g(%n: i64[]) {
  %e: i64[u0] = sized_arange %n {size=u0}
  %i = iota {size=u0}
  %j = add %i, %i
  %f: i64[u1] = sized_arange %n {size=u1}
  %h = iota {size=u0 + u1}
  return %j, %h, %e, %f
}"""
    graph = parse_graph(source)
    assert needs_partitioning(graph)
    assert [x.tolist() for x in interpret(graph, [torch.tensor(2)])[:2]] == [[0, 2], [0, 1, 2, 3]]
    with pytest.raises(ArgumentError, match="must not be negative, got -1"):
        interpret(graph, [torch.tensor(-1)])


def test_the_parts_mean_what_the_graph_means() -> None:
    graph = parse_graph(CHOSEN)
    x, w = torch.tensor([1.0, float("inf"), 2.0, -float("inf")]), torch.ones(4)
    for given in (x, x[:1], x[:0]):
        chosen, total, same = interpret(graph, [given, w], dtype=torch.float64)
        torch.testing.assert_close(chosen, given.double().exp()[given.isinf()])
        assert (total, same.tolist()) == (4, w.tolist())


def test_conditions_are_checked_when_their_sizes_are_known() -> None:
    graph = parse_graph(CHOSEN)
    parts = partition(graph)
    condition = RuntimeAssertion(var("u0"), "<=", var("n") - 1, "not all of them")
    compute = partial(partial, interpret)
    run = PartitionExecutor(
        graph, parts, tuple(compute(p.graph) for p in parts), partial(bind_reference, compute), (condition,)
    )
    x = torch.tensor([float("inf"), 1.0])
    assert run([x, torch.ones(4)])[1] == {"n": 2, "u0": 1}
    with pytest.raises(ArgumentError, match=r"not all of them \(n = 1, u0 = 1\)"):
        run([x[:1], torch.ones(4)])


def test_what_only_has_sizes_of_its_inputs_is_one_part() -> None:
    assert not needs_partitioning(parse_graph("graph @g(%x: f32[n]) {\n  %y = exp %x\n  return %y\n}"))
