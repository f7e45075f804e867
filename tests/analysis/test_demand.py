"""Demand analysis: requested elements, shared loops, and the nodes that are materialized."""

from __future__ import annotations

import pytest

from compiler.analysis import demand as demand_module
from compiler.analysis.demand import Demand, elementwise_cost, is_cheap_index_expr, solve_demand
from compiler.cost.machine import AVX512
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import position_variables
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.graph_parser import parse_graph


def demand_of(text: str, solve: bool = True) -> Demand:
    """The demand of a group for element (i0, i1, ...) of its last output."""
    graph = parse_graph(text)
    root = graph.outputs[0]
    index = tuple(var(f"i{k}") if extent != 1 else 0 for k, extent in enumerate(root.shape))
    return solve_demand(graph, root, index, AVX512) if solve else Demand(graph, root, index)


def node(graph: Graph, name: str) -> Node:
    return next(n for n in graph.nodes if n.name == name)


def requests(demand: Demand, name: str) -> list[tuple[list[str], tuple[str, ...], str]]:
    """Index, loops and consumer of each request for a node."""
    found = demand.requests.get(node(demand.graph, name), [])
    return [([str(d) for d in r.index], r.loops, r.consumer.name) for r in found]


def materialized(demand: Demand) -> set[str]:
    return {n.name for n in demand.materialized}


def test_elementwise_requests_the_element_at_its_index() -> None:
    d = demand_of("graph(%x: f32[4, 8], %b: f32[8]) { %e = exp %x  %y = add %e, %b  return %y }")
    assert requests(d, "x") == [(["i0", "i1"], ("i0", "i1"), "y")]
    assert requests(d, "b") == [(["i1"], ("i0", "i1"), "y")]
    assert materialized(d) == set()
    assert d.shared_loops == ("i0", "i1")


def test_view_requests_the_element_that_it_moves() -> None:
    d = demand_of("graph(%x: f32[4, 8]) { %t = permute %x {dims=[1, 0]}  %y = exp %t  return %y }")
    assert requests(d, "x") == [(["i1", "i0"], ("i0", "i1"), "y")]


def test_reduction_requests_its_row_in_a_loop_of_its_own() -> None:
    d = demand_of("graph(%x: f32[4, 8]) { %y = sum %x {dims=[1]}  return %y }")
    assert requests(d, "x") == [(["i0", "?1"], ("i0", "?1"), "y")]


def test_row_reduction_leaves_the_row_loop_shared() -> None:
    d = demand_of("""graph(%x: f32[4, 8]) {
      %s = sum %x {dims=[1], keepdim=true}  %y = div %x, %s  return %y }""")
    assert d.shared_loops == ("i0",)
    assert materialized(d) == set()  # the sum is computed once in the shared loop


def test_materializes_expensive_value_of_two_consumers() -> None:
    """exp is computed once for its sum and the quotient."""
    d = demand_of("""graph(%x: f32[4, 8]) {
      %e = exp %x  %s = sum %e {dims=[1], keepdim=true}  %y = div %e, %s  return %y }""")
    assert materialized(d) == {"e"}
    assert {consumer for _, _, consumer in requests(d, "e")} == {"s", "y"}


def test_recomputes_cheap_value_of_two_consumers() -> None:
    d = demand_of("""graph(%x: f32[4, 8]) {
      %e = neg %x  %s = sum %e {dims=[1], keepdim=true}  %y = div %e, %s  return %y }""")
    assert materialized(d) == set()


def test_materializes_operand_that_each_column_recomputes() -> None:
    """The loop over columns i1 encloses the products' loop ?1, and exp(x[i0, ?1]) does not depend on it."""
    text = "graph(%x: f32[4, 8], %w: f32[8, 5]) { %e = exp %x  %y = matmul %e, %w  return %y }"
    d = demand_of(text, solve=False)
    (request,) = d.requests[node(d.graph, "e")]
    assert request.loops == ("i0", "i1", "?1")
    assert request.is_recomputed()
    assert materialized(demand_of(text)) == {"e"}


def test_constant_linear_requests_every_column_of_its_matrix() -> None:
    d = demand_of("""graph(%x: f32[4, 3]) {
      %y = constant_linear %x {dim=1, matrix=[[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]}  return %y }""")
    assert [index for index, _, _ in requests(d, "x")] == [["i0", "0"], ["i0", "1"], ["i0", "2"]]


def test_scalar_constants_are_not_requested() -> None:
    d = demand_of("graph(%x: f32[4]) { %y = mul %x, 2.0  return %y }")
    assert {n.name for n in d.requests} == {"x", "y"}


def test_limits_the_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_module, "MAX_REQUESTS", 3)
    with pytest.raises(LoweringError, match="too many distinct index expressions for %y"):
        demand_of("graph(%x: f32[4]) { %a = exp %x  %b = neg %a  %y = abs %b  return %y }")


def test_elementwise_cost_grows_with_its_primitives() -> None:
    graph = parse_graph("graph(%x: f32[4]) { %a = add %x, %x  %b = exp %a  return %b }")
    assert 0 < elementwise_cost(node(graph, "a")) < elementwise_cost(node(graph, "b"))


def test_cheap_index_expressions_come_from_indices_alone() -> None:
    graph = parse_graph("""graph(%x: i64[4]) {
      %i = iota {size=4}  %a = add %i, 1  %b = add %i, %x  return %a, %b }""")
    assert is_cheap_index_expr(node(graph, "a"))
    assert not is_cheap_index_expr(node(graph, "b"))


def test_variables_of_several_positions() -> None:
    assert position_variables((var("i") * 2, 0), (var("j") + var("k"),)) == {"i", "j", "k"}


def test_the_cost_of_a_chain_of_squares_is_found_without_walking_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each square counts its operand twice, so that twenty of them have a million paths."""
    asked = list[Node]()

    def counted(n: Node) -> int:
        asked.append(n)
        assert len(asked) < 1000
        return elementwise_cost(n)

    monkeypatch.setattr(demand_module, "elementwise_cost", counted)
    squares = "\n".join(f"%y{k + 1} = mul %y{k}, %y{k}" for k in range(20))
    text = f"""graph(%x: f32[4, 8]) {{ %y0 = exp %x {squares}
      %s = sum %y20 {{dims=[1], keepdim=true}}  %z = div %y20, %s  return %z }}"""
    found = demand_of(text)
    assert materialized(found) == {"y20"}
    exp, square = elementwise_cost(node(found.graph, "y0")), elementwise_cost(node(found.graph, "y1"))
    assert found.recompute_cost(node(found.graph, "y3")) == 8 * exp + 7 * square
