"""Contractions of graphs: which nodes are sums of products, and which instructions of a target fit them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compiler.analysis.contraction_nodes import (
    is_contraction_node,
    matching_shape,
    mixed_contractions,
    operand_positions,
    widening_shape,
    with_sum_dtype,
)
from compiler.errors import Loc
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Op, input_node
from compiler.ir.graph.structure import Reduction
from compiler.ir.scalar import Expr
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import DTYPES, f32
from compiler.target import MatrixShape

BYTES = MatrixShape(1, 16, 4, "u8", "i8", "i32")
PAIRS = MatrixShape(1, 16, 2, "i16", "i16", "i32")
HALVES = MatrixShape(16, 8, 16, "bf16", "bf16", "f32")
SHAPES = (PAIRS, BYTES, HALVES)


def result(statement: str, *types: str) -> Node:
    """The value %y of inputs %x0, %x1, ... that a statement computes."""
    inputs = ", ".join(f"%x{k}: {t}" for k, t in enumerate(types))
    return parse_graph(f"graph({inputs}) {{ %y = {statement} return %y }}").outputs[0]


@pytest.mark.parametrize("op", [pytest.param(o, id=o.name) for o in OPS.values() if o.samples])
def test_products_of_matrices_and_convolutions_alone_are_contractions(op: Op) -> None:
    for s in op.samples:
        n = op(*(input_node(f"x{k}", parse_type(t)) for k, t in enumerate(s.types)), **s.attrs)
        assert is_contraction_node(n) == (op in (ops.matmul, ops.conv, ops.conv_phases))


@pytest.mark.parametrize(
    ("combine", "fn", "expected"),
    [
        ("add", lambda x, y: x * y, True),
        ("max", lambda x, y: x * y, False),
        ("add", lambda x, y: x * x, False),
        ("add", lambda x, y: x + y, False),
        ("add", lambda x, y: x * y * 2.0, False),
    ],
)
def test_only_a_sum_of_products_of_both_operands_counts(
    combine: str, fn: Callable[[Expr, Expr], Expr], expected: bool
) -> None:
    n = result("matmul %x0, %x1", "f32[4, 6]", "f32[6, 5]")
    assert isinstance(n.structure, Reduction)
    changed = replace(n.op, structure=replace(n.structure, combine=combine, fn=fn))
    assert is_contraction_node(replace(n, op=changed)) == expected


def test_a_sum_of_squares_is_no_contraction() -> None:
    n = parse_graph("graph(%x: f32[4, 6]) { %s = mul %x, %x  %y = sum %s {dims=[1]}  return %y }").outputs[0]
    assert isinstance(n.structure, Reduction)
    assert not is_contraction_node(n)


def test_contractions_with_a_dtype_for_the_sum_are_found_in_order() -> None:
    graph = parse_graph("""graph(%x: bf16[4, 6], %w: bf16[6, 6], %i: bf16[1, 2, 9], %k: bf16[4, 2, 3]) {
      %a = matmul %x, %w {dtype=f32}  %c = conv %i, %k {stride=[2], dilation=[1], dtype=f32}
      %b = cast %x {dtype=f32}  %d = add %a, %b  %e = sum %d {dims=[0]}  return %c, %e }""")
    assert sorted(n.name for n in mixed_contractions(graph)) == ["a", "c"]
    assert [n.name for n in mixed_contractions(graph)] == [n.name for n in graph.nodes if n.name in ("a", "c")]


def test_a_contraction_without_such_an_attribute_is_not_found() -> None:
    n = result("matmul %x0, %x1", "f32[4, 6]", "f32[6, 5]")
    plain = replace(n, attrs={k: v for k, v in n.attrs.items() if k != "dtype"})
    assert is_contraction_node(plain)
    assert list(mixed_contractions(Graph(plain.operands, (plain,)))) == []


def test_a_contraction_of_other_operands_keeps_attributes_and_place() -> None:
    n = result('conv %x0, %x1 {stride=[2], dilation=[1]} loc("m.py":3)', "bf16[1, 2, 9]", "bf16[4, 2, 3]")
    x, w = n.operands
    new = with_sum_dtype(n, [x.with_name("u"), w], f32)
    assert new.op is ops.conv
    assert [o.name for o in new.operands] == ["u", "x1"]
    assert new.attrs == {**n.attrs, "dtype": f32}
    assert (str(n.type), str(new.type)) == ("bf16[1, 4, 4]", "f32[1, 4, 4]")
    assert new.loc == Loc("m.py", 3)


@pytest.mark.parametrize(
    ("lhs", "rhs", "total", "matching", "widening"),
    [
        ("u8", "i8", "i32", BYTES, (BYTES, "u8 i8")),
        ("i8", "u8", "i32", BYTES, (BYTES, "i8 u8")),
        ("i8", "i8", "i32", None, (PAIRS, "i16 i16")),
        ("i16", "u8", "i32", None, (PAIRS, "i16 i16")),
        ("bf16", "bf16", "f32", HALVES, (HALVES, "bf16 bf16")),
        ("f8e5m2", "bf16", "f32", None, None),  # floats are not widened
        ("i32", "i16", "i32", None, None),
        ("u8", "i8", "i64", None, None),
    ],
)
def test_instructions_that_multiply_two_dtypes_as_they_are_or_widened(
    lhs: str, rhs: str, total: str, matching: MatrixShape | None, widening: tuple[MatrixShape, str] | None
) -> None:
    operands = [input_node(name, parse_type(f"{t}[4, 4]")) for name, t in (("x", lhs), ("y", rhs))]
    assert matching_shape(operands, DTYPES[total], SHAPES) == matching
    found = widening_shape(operands, DTYPES[total], SHAPES)
    assert (found and (found[0], " ".join(d.name for d in found[1]))) == widening


@pytest.mark.parametrize(
    ("statement", "types", "positions"),
    [
        ("matmul %x0, %x1", ("f32[4, 6]", "f32[6, 5]"), ["i0, r0", "r0, i1"]),
        ("matmul %x0, %x1", ("f32[3, 1, 4, 6]", "f32[2, 6, 5]"), ["i0, 0, i2, r0", "i1, r0, i3"]),
        (
            "conv %x0, %x1 {stride=[2], dilation=[1]}",
            ("f32[1, 2, 9]", "f32[4, 2, 3]"),
            ["i0, r0, i2*2 + r1", "i1, r0, r1"],
        ),
        ("amax %x0 {dims=[0]}", ("f32[4, 6]",), ["r0, i0"]),
    ],
)
def test_operand_positions(statement: str, types: tuple[str, ...], positions: list[str]) -> None:
    assert [", ".join(map(str, p)) for p in operand_positions(result(statement, *types))] == positions
