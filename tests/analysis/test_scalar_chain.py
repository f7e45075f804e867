"""Chains of functions of one value: where they end, what they are of another value, and which of them keep the order."""

from __future__ import annotations

import pytest

from compiler.analysis.scalar_chain import (
    apply_chain,
    is_increasing,
    is_increasing_chain,
    scalar_chain,
    varying_operand,
)
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.text.graph_parser import parse_graph
from compiler.testing.checks import canonical_text


def graph(statements: str, dtype: str = "f32") -> Graph:
    """The graph of `statements`, which make %y of %x, %z and the scalar %s."""
    return parse_graph(f"graph(%x: {dtype}[2, 3], %z: {dtype}[2, 3], %s: {dtype}[]) {{ {statements}  return %y }}")


def node(statements: str, dtype: str = "f32") -> Node:
    (y,) = graph(statements, dtype).outputs
    return y


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        ("%a = mul %x, 4.0  %b = round %a  %y = cast %b {dtype=i8}", ["y", "b", "a"]),
        ("%a = sub 1.0, %x  %y = exp %a", ["y", "a"]),
        ("%a = add %x, %z  %y = maximum %a, 0.0", ["y"]),
        ("%a = mul %x, %s  %y = maximum %a, 0.0", ["y"]),
        ("%a = permute %x {dims=[1, 0]}  %y = relu %a", ["y"]),
        ("%a = exp %x  %y = permute %a {dims=[1, 0]}", []),
        ("%y = add %x, %z", []),
        ("%y = mul %x, %x", []),
        ("%y = add %x, %s", []),
        ("%c = constant f32[3] [1.0, 2.0, 3.0]  %y = add %x, %c", []),
    ],
)
def test_a_chain_ends_at_the_first_node_of_several_values(statements: str, names: list[str]) -> None:
    assert [n.name for n in scalar_chain(node(statements))] == names


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        ("%y = add %x, 1.0", "x"),
        ("%y = sub 1.0, %x", "x"),
        ("%y = exp %x", "x"),
        ("%y = add %x, %z", None),
        ("%y = add %x, %s", None),
        ("%c = constant f32[1] [1.0]  %y = add %x, %c", None),
        ("%r = reshape %x {shape=[1, 2, 3]}  %c = constant f32[4, 1, 1] [[[1.0]], [[1.0]], [[1.0]], [[1.0]]]  %y = add %r, %c", None),
        ("%y = sum %x {dims=[0]}", None),
        ("%c = constant f32[] 1.0  %y = expand %c {shape=[2, 3]}", None),
    ],
)  # fmt: skip
def test_the_varying_operand_has_the_shape_of_the_result(statements: str, name: str | None) -> None:
    below = varying_operand(node(statements))
    assert (None if below is None else below.name) == name


def test_a_chain_is_applied_to_another_value_in_order() -> None:
    g = graph("%a = mul %x, 4.0  %b = sub 3.0, %a  %y = cast %b {dtype=i8}")
    new = apply_chain(scalar_chain(g.outputs[0]), g.inputs[1])
    expected = graph("%a = mul %z, 4.0  %b = sub 3.0, %a  %y = cast %b {dtype=i8}")
    assert canonical_text(Graph(g.inputs, (new,))) == canonical_text(expected)


def test_a_chain_takes_the_shape_of_the_value_that_it_is_applied_to() -> None:
    g = graph("%a = mul %x, 4.0  %y = cast %a {dtype=i8}")
    (row,) = parse_graph("graph(%x: f32[7]) { return %x }").outputs
    new = apply_chain(scalar_chain(g.outputs[0]), row)
    assert str(new.type) == "i8[7]"


def test_no_chain_leaves_the_value() -> None:
    x = node("%y = exp %x")
    assert apply_chain([], x) is x


@pytest.mark.parametrize(
    "statement",
    ["mul %x, 4.0", "mul 4.0, %x", "mul %x, 0.0", "add %x, -1.0", "sub %x, 1.0", "maximum %x, 0.0", "minimum 1.0, %x",
     "relu %x", "round %x", "cast %x {dtype=f64}", "cast %x {dtype=f32}"],
)  # fmt: skip
def test_functions_that_never_decrease(statement: str) -> None:
    assert is_increasing(node(f"%y = {statement}"))


@pytest.mark.parametrize(
    "statement",
    ["mul %x, -4.0", "mul -4.0, %x", "mul %x, nan", "mul %x, %z", "sub 1.0, %x", "neg %x", "abs %x", "div 1.0, %x", "silu %x", "exp %x"],
)  # fmt: skip
def test_functions_that_may_decrease(statement: str) -> None:
    assert not is_increasing(node(f"%y = {statement}"))


def test_rounding_of_integers_is_the_integer_itself() -> None:
    assert is_increasing(node("%y = round %x", "i32"))


@pytest.mark.parametrize(
    ("statements", "dtype", "increasing"),
    [
        ("%y = cast %x {dtype=i8}", "i32", False),
        ("%y = cast %x {dtype=i64}", "i32", True),
        ("%y = cast %x {dtype=f32}", "i32", True),
        ("%y = cast %x {dtype=i8}", "f32", False),
        ("%a = maximum %x, -128  %b = minimum %a, 127  %y = cast %b {dtype=i8}", "i32", True),
        ("%a = maximum %x, -128.0  %b = minimum %a, 127.0  %y = cast %b {dtype=i8}", "f32", True),
        ("%a = maximum %x, -128.0  %b = minimum %a, 200.0  %y = cast %b {dtype=i8}", "f32", False),
        ("%y = add %x, 1", "i32", False),
        ("%a = minimum %x, 126  %y = add %a, 1", "i8", True),
        ("%a = maximum %x, 0  %y = sub %a, 127", "i8", True),
        ("%a = maximum %x, 0  %y = mul %a, 2", "i8", False),
        ("%y = mul %x, 0.0", "f32", True),
        ("%a = mul %x, -1.0  %y = exp %a", "f32", False),
    ],
)
def test_integers_that_wrap_do_not_keep_the_order(statements: str, dtype: str, increasing: bool) -> None:
    assert is_increasing_chain(scalar_chain(node(statements, dtype))) is increasing
