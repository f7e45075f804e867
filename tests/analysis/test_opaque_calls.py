"""Operators left to PyTorch: each is found once, in nested graphs too, with its reason and the user's line."""

from __future__ import annotations

from compiler.analysis.opaque_calls import OpaqueOperator, opaque_operators
from compiler.errors import Loc
from compiler.ir.text.graph_parser import parse_graph


def found(text: str) -> list[OpaqueOperator]:
    """The opaque operators that the results of a graph depend on."""
    return list(opaque_operators(parse_graph(text).outputs))


def test_ops_with_a_structure_are_not_listed() -> None:
    assert found("graph(%x: f32[4, 9], %w: f32[9, 2]) { %e = exp %x  %y = matmul %e, %w  return %y }") == []


def test_an_op_tells_its_own_reason_and_place() -> None:
    text = """graph(%x: f32[4, 9]) {
      %s = sort %x {dim=1} loc("model.py":7, "x.sort(1)", "head")  %y = tuple_get %s {index=0}  return %y }"""
    assert found(text) == [OpaqueOperator("sort", "sorting", Loc("model.py", 7, "x.sort(1)", "head"), "s")]


def test_a_call_tells_the_operator_that_it_calls() -> None:
    text = """graph(%x: f32[4]) {{
      %y = eager %x {{overload="aten.sinh.default", args=["%0"], dtypes=[f32], shapes=[[4]]{more}}}  return %y }}"""
    plain, explained = (text.format(more=more) for more in ("", ', reason="complex numbers"'))
    assert found(plain) == [OpaqueOperator("aten.sinh.default", "has no op in Graph IR", None, "y")]
    assert found(explained) == [OpaqueOperator("aten.sinh.default", "complex numbers", None, "y")]


def test_what_two_results_share_is_listed_once_and_what_none_needs_is_not() -> None:
    text = """graph(%x: f32[4, 9]) {
      %a = sort %x {dim=1}  %b = topk %x {dim=1, k=2}  %u = tuple_get %b {index=0}
      %v = tuple_get %a {index=0}  %w = tuple_get %a {index=1}  return %v, %w }"""
    assert [o.node for o in found(text)] == ["a"]


def test_operators_of_nested_graphs_are_listed_once_each_and_in_all_of_them() -> None:
    text = """graph(%x: f32[4, 9], %p: bool[1]) {
      %y = cond %p, %x {
        true_graph=graph(%a: f32[4, 9]) { %t = topk %a {k=9, dim=1}  %u = tuple_get %t {index=0}  return %u },
        false_graph=graph(%b: f32[4, 9]) {
          %z = cond %q, %b {
            true_graph=graph(%c: f32[4, 9]) { return %c },
            false_graph=graph(%d: f32[4, 9]) { %s = sort %d {dim=0}  %w = tuple_get %s {index=0}  return %w }}
          return %z }}
      return %y }"""
    text = text.replace("graph(%b: f32[4, 9]) {", "graph(%b: f32[4, 9]) { %m = amax %b {dims=[0, 1]}  %q = gt %m, 0.0")
    assert [(o.operator, o.node) for o in found(text)] == [("topk", "t"), ("sort", "s")]


def test_an_opaque_op_feeds_another_in_the_order_of_computation() -> None:
    text = """graph(%x: f32[4, 9]) {
      %a = topk %x {dim=1, k=3}  %b = tuple_get %a {index=0}  %c = sort %b {dim=0}  %y = tuple_get %c {index=1}
      return %y }"""
    assert [o.operator for o in found(text)] == ["topk", "sort"]
    assert list(opaque_operators(parse_graph(text).inputs)) == []
