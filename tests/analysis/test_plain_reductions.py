"""Reductions of elements as they are: which nodes are such, and which dimensions they reduce as a whole."""

from __future__ import annotations

import pytest

from compiler.analysis.plain_reductions import is_plain_reduction, reduced_dims
from compiler.ir.graph.node import Node
from compiler.ir.text.graph_parser import parse_graph


def node(statement: str, dtype: str = "f32") -> Node:
    """The node that `statement` makes of a tensor %x and a matrix %w."""
    (n,) = parse_graph(f"graph(%x: {dtype}[2, 4, 6], %w: {dtype}[6, 6]) {{ %y = {statement}  return %y }}").outputs
    return n


@pytest.mark.parametrize(
    ("statement", "dims"),
    [
        ("sum %x {dims=[1]}", (1,)),
        ("sum %x {dims=[0, 2]}", (0, 2)),
        ("sum %x {dims=[2, 0]}", (0, 2)),
        ("sum %x {dims=[0, 2], keepdim=true}", (0, 2)),
        ("sum %x {dims=[0, 1, 2]}", (0, 1, 2)),
        ("sum %x {dims=[]}", ()),
        ("prod %x {dims=[1]}", (1,)),
        ("amax %x {dims=[2]}", (2,)),
        ("amin %x {dims=[0], keepdim=true}", (0,)),
    ],
)
def test_reductions_of_whole_dimensions_are_plain(statement: str, dims: tuple[int, ...]) -> None:
    n = node(statement)
    assert is_plain_reduction(n)
    assert reduced_dims(n) == dims


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8", "i64"])
def test_sums_keep_the_dtype_of_their_operand(dtype: str) -> None:
    n = node("sum %x {dims=[1]}", dtype)
    assert is_plain_reduction(n)
    assert reduced_dims(n) == (1,)


@pytest.mark.parametrize(("op", "dims"), [("any", (0, 1)), ("all", (1,))])
def test_reductions_of_bools_are_plain(op: str, dims: tuple[int, ...]) -> None:
    n = node(f"{op} %x {{dims={list(dims)}}}", "bool")
    assert is_plain_reduction(n)
    assert reduced_dims(n) == dims


@pytest.mark.parametrize(
    "window", ["size=[2], stride=[1], dilation=[1]", "size=[6], stride=[1], dilation=[1]", "size=[1], stride=[2], dilation=[1]"]
)  # fmt: skip
@pytest.mark.parametrize("op", ["max_pool", "sum_pool"])
def test_windows_are_plain_but_no_whole_dimensions(op: str, window: str) -> None:
    n = node(f"{op} %x {{{window}}}")
    assert is_plain_reduction(n)
    assert reduced_dims(n) == ()


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("exp %x", id="elementwise"),
        pytest.param("permute %x {dims=[2, 0, 1]}", id="a view"),
        pytest.param("cumsum %x {dim=1}", id="a scan"),
        pytest.param("mean %x {dims=[1]}", id="a division behind the sum"),
        pytest.param("matmul %x, %w", id="two operands"),
        pytest.param("max_pool %x {size=[2], stride=[1], dilation=[1], before=[1], after=[0]}", id="steps left out"),
        pytest.param("topk %x {k=2, dim=1}", id="several results"),
    ],
)
def test_other_nodes_are_no_plain_reductions(statement: str) -> None:
    n = parse_graph(f"graph(%x: f32[2, 4, 6], %w: f32[6, 6]) {{ %y = {statement}  return %y }}").outputs[0]
    assert not is_plain_reduction(n)
    assert reduced_dims(n) == ()


def test_inputs_are_no_plain_reductions() -> None:
    (x,) = parse_graph("graph(%x: f32[2, 4]) { return %x }").outputs
    assert not is_plain_reduction(x)
    assert reduced_dims(x) == ()


def test_a_dynamic_dimension_is_reduced_as_a_whole() -> None:
    (n,) = parse_graph("graph(size s in 1..9 hint 4, %x: f32[3, s]) { %y = sum %x {dims=[1]}  return %y }").outputs
    assert reduced_dims(n) == (1,)
