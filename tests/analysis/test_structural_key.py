"""Structural keys: equal for groups that become the same kernel, and for no others."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from compiler.analysis.structural_key import group_key, structural_key
from compiler.ir.graph.graph import preorder
from compiler.ir.symbolic.index_expr import dynamic_size
from compiler.ir.text.graph_parser import parse_graph

TEXT = "graph(%x: f32[4, 8], %y: f32[8]) { %a = mul %x, %y  %b = exp %x  %c = add %a, %b  return %c }"


def key(text: str) -> Hashable:
    return structural_key(parse_graph(text))


def test_names_and_the_order_of_nodes_do_not_count() -> None:
    other = "graph(%p: f32[4, 8], %q: f32[8]) { %e = exp %p  %m = mul %p, %q  %s = add %m, %e  return %s }"
    assert key(other) == key(TEXT)


@pytest.mark.parametrize(
    ("old", "new"),
    [("mul %x, %y", "mul %y, %x"), ("exp", "log"), ("f32[4, 8]", "f32[5, 8]"), ("return %c", "return %c, %b"), ("add %a, %b", "add %b, %a"),
     ("%x: f32[4, 8], %y: f32[8]", "%y: f32[8], %x: f32[4, 8]"), ("mul %x, %y", "mul %x, 2.0")],
)  # fmt: skip
def test_everything_else_counts(old: str, new: str) -> None:
    assert key(TEXT.replace(old, new)) != key(TEXT)


@pytest.mark.parametrize(("one", "other"), [("0.0", "-0.0"), ("1.0", "true")])
def test_attributes_that_compare_equal_are_parted(one: str, other: str) -> None:
    text = "graph(%x: f32[4]) {{ %p = pad %x {{before=[1], after=[1], value={}}}  return %p }}"
    assert key(text.format(one)) != key(text.format(other))


def test_the_hint_of_a_size_counts() -> None:
    graph = parse_graph("graph(%x: f32[n]) { %a = exp %x  return %a }")
    few, many = (graph.specialize({"n": dynamic_size("n", 2, 4096, hint)}) for hint in (84, 500))
    assert structural_key(few) != structural_key(many)


def test_a_group_has_the_key_of_its_body() -> None:
    graph = parse_graph("graph(%x: f32[4], %y: f32[4]) { %u = sqrt %x  %a = mul %u, 2.0  %c = add %a, %y  return %c }")
    body = parse_graph("graph(%x0: f32[4], %x1: f32[4]) { %a = mul %x0, 2.0  %c = add %a, %x1  return %c }")
    u, a, c, y = (next(n for n in graph.nodes if n.name == name) for name in "uacy")
    order = preorder([c], {a, c})
    assert [n.name for n in order if n in (u, a, c, y)] == ["c", "a", "u", "y"]
    assert group_key(order, [u, y], [c]) == structural_key(body)
