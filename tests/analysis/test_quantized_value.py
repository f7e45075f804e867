"""Quantized values: what keeps the form (codes - zero_point) * scale, and where codes, zero points and scales move."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compiler.analysis.quantized_value import (
    QuantizedValue,
    is_extreme,
    is_known,
    is_known_zero,
    match_quantized,
    match_quantized_values,
    operand_sums,
    place,
)
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, input_node, scalar_constant
from compiler.ir.graph.structure import IndexMap, index_vars
from compiler.ir.interpret.graph import interpret
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import bf16, f32, i32
from compiler.testing.checks import canonical_text, check_equivalent

INPUTS = "%x: i8[2, 4], %u: u8[2, 4], %f: f32[2, 4], %n: i32[2, 4], %s: f32[2, 1], %z: i8[2, 1]"
WIDE = "%w = cast %x {dtype=f32}"
VALUE = f"{WIDE}  %d = sub %w, 3.0  %v = mul %d, 0.25"
ROWS = f"{WIDE}  %o = cast %z {{dtype=f32}}  %d = sub %w, %o  %v = mul %d, %s"
COLUMN = "%c = constant f32[2, 1] [[1.0], [2.0]]  %v = mul %w, %c"
WINDOW = "{size=[2], stride=[1], dilation=[1]}"
DIVIDED = "a view divides its groups, which have scales or zero points of their own"


def graph(statements: str) -> Graph:
    return parse_graph(f"graph({INPUTS}) {{ {statements}  return %y }}")


def node(statements: str) -> Node:
    return graph(statements).outputs[0]


def check_match(statements: str, codes: str, constants: tuple[int, float] | None) -> None:
    """%y has the codes %y of `codes`, and these dequantize to its value."""
    g = graph(statements)
    (y,) = g.outputs
    found = match_quantized_values(g)[y]
    assert isinstance(found, QuantizedValue)
    assert found.constants == constants
    assert canonical_text(Graph(g.inputs, (found.codes,))) == canonical_text(
        graph(codes) if codes else Graph(g.inputs, g.inputs[:1])
    )
    check_equivalent(g, Graph(g.inputs, (found.dequantize(y.dtype),)), special=False)


@pytest.mark.parametrize(
    ("rest", "codes"),
    [
        ("cast %v {dtype=f16}", ""),
        ("reshape %v {shape=[8]}", "reshape %x {shape=[8]}"),
        ("expand %v {shape=[3, 2, 4]}", "expand %x {shape=[3, 2, 4]}"),
        ("pad %v {before=[0, 1], after=[1, 0]}", "pad %x {before=[0, 1], after=[1, 0], value=3}"),
        ("relu %v", "maximum %x, 3"),
        ("cat %v, %v {dim=1}", "cat %x, %x {dim=1}"),
        ("amin %v {dims=[1]}", "amin %x {dims=[1]}"),
        (f"max_pool %v {WINDOW}", f"max_pool %x {WINDOW}"),
    ],
)
def test_with_one_scale_what_keeps_the_order_keeps_the_form(rest: str, codes: str) -> None:
    check_match(f"{VALUE}  %y = {rest}", codes and f"%y = {codes}", (3, 0.25))


@pytest.mark.parametrize(
    ("statements", "codes", "constants"),
    [
        ("%y = relu %x", "%y = relu %x", (0, 1.0)),
        ("%y = cast %x {dtype=i32}", "", (0, 1.0)),
        (f"{WIDE}  %y = sub %w, 0.0", "", (0, 1.0)),
        (f"{WIDE}  %y = mul 0.5, %w", "", (0, 0.5)),
        (f"{WIDE}  %y = mul %w, -0.5", "", None),
        (f"{VALUE}  %y = mul %v, 2.0", "", None),
        ("%w = cast %x {dtype=i32}  %y = sub %w, %n", "", None),
        (f"{ROWS}  %y = permute %v {{dims=[1, 0]}}", "%y = permute %x {dims=[1, 0]}", None),
        (f"{ROWS}  %y = reshape %v {{shape=[2, 2, 2]}}", "%y = reshape %x {shape=[2, 2, 2]}", None),
        (f"{ROWS}  %y = slice %v {{dim=1, start=1, size=2}}", "%y = slice %x {dim=1, start=1, size=2}", None),
        (f"{WIDE}  {COLUMN}  %y = pad %v {{before=[0, 1], after=[0, 0]}}", "%y = pad %x {before=[0, 1], after=[0, 0]}", None),
    ],
)  # fmt: skip
def test_scales_and_zero_points_of_rows_move_with_the_rows(
    statements: str, codes: str, constants: tuple[int, float] | None
) -> None:
    check_match(statements, codes, constants)


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        ("%y = exp %f", ""),
        ("%y = cast %f {dtype=i32}", ""),
        ("%y = cast %x {dtype=bool}", ""),
        ("%t = topk %x {k=1, dim=1}  %y = exp %f", ""),
        (f"{WIDE}  %y = sub 3.0, %w", ""),
        (f"{WIDE}  %y = sub %w, 0.5", ""),
        (f"{WIDE}  %y = sub %w, %f", ""),
        ("%w = cast %u {dtype=i32}  %y = mul %w, 2", ""),
        (f"{WIDE}  %v = sub %w, 200.0  %y = relu %v", ""),
        (f"{VALUE}  %y = sub %v, 2.0", ""),
        (f"{VALUE}  %y = exp %v", ""),
        (f"{VALUE}  %y = cast %v {{dtype=i32}}", ""),
        (f"{VALUE}  %y = sum_pool %v {WINDOW}", ""),
        (f"{VALUE}  %y = cat %v, %f {{dim=1}}", ""),
        (f"{VALUE}  %b = mul %w, 0.25  %y = cat %v, %b {{dim=1}}", ""),
        (f"{VALUE}  %y = pad %v {{before=[0, 1], after=[0, 0], value=1.0}}", ""),
        (f"{ROWS}  %y = relu %v", ""),
        (f"{ROWS}  %y = max_pool %v {WINDOW}", ""),
        (f"{ROWS}  %y = reshape %v {{shape=[8]}}", DIVIDED),
        (f"{ROWS}  %y = slice %v {{dim=0, size=1}}", DIVIDED),
        (f"{ROWS}  %y = pad %v {{before=[0, 1], after=[0, 0]}}", "the padding needs a zero point that is one constant"),
        (f"{WIDE}  %v = mul %w, %s  %y = pad %v {{before=[0, 1], after=[0, 0]}}",
         "the padding needs a scale that is constant: 0 times one that is not finite would be NaN"),
        (f"{WIDE}  {COLUMN}  %y = pad %v {{before=[1, 0], after=[0, 0]}}", "the scale varies along the padding"),
    ],
)  # fmt: skip
def test_other_values_have_another_form(statements: str, why: str) -> None:
    g = graph(statements)
    assert match_quantized_values(g)[g.outputs[0]] == why


def test_bytes_are_their_own_codes_and_results_of_several_values_are_none() -> None:
    x = input_node("x", parse_type("i8[2]"))
    assert match_quantized(x, {}) == QuantizedValue(x)
    assert match_quantized(ops.topk(x, k=1, dim=0), {x: QuantizedValue(x)}) == ""


@pytest.mark.parametrize(
    ("zero_point", "scale", "expected"),
    [(None, None, (0, 1.0)), (3, 0.5, (3, 0.5)), (3, None, (3, 1.0)), (3, -0.5, None), (3, 0.0, None)],
)
def test_constants_have_a_positive_scale(
    zero_point: int | None, scale: float | None, expected: tuple[int, float] | None
) -> None:
    z, s = (
        None if zero_point is None else scalar_constant(zero_point, i32),
        None if scale is None else scalar_constant(scale),
    )
    x = input_node("x", parse_type("i8[2]"))
    assert QuantizedValue(x, z, s).constants == expected
    assert QuantizedValue(x, z, input_node("s", parse_type("f32[]"))).constants is None


def test_values_are_computed_in_wide_numbers() -> None:
    x = input_node("x", parse_type("i8[2]"))
    value = QuantizedValue(x, scalar_constant(3, i32), scalar_constant(0.5))
    text = "graph(%x: i8[2]) { %a = cast %x {dtype=f32}  %b = sub %a, 3.0  %c = mul %b, 0.5  %y = cast %c {dtype=bf16}  return %y }"
    check_equivalent(Graph((x,), (value.dequantize(bf16),)), parse_graph(text), exact=True)
    integers = parse_graph("graph(%x: i8[2]) { %a = cast %x {dtype=i32}  %y = sub %a, 3  return %y }")
    new = QuantizedValue(x, scalar_constant(3, i32)).dequantize(i32)
    assert canonical_text(Graph((x,), (new,))) == canonical_text(integers)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (f"max_pool %f {WINDOW}", True),
        ("amin %x {dims=[1]}", True),
        (f"sum_pool %f {WINDOW}", False),
        ("max_pool %f {size=[2], stride=[3], dilation=[1], before=[4], after=[2]}", False),
        ("max_pool %f {size=[3], stride=[2], dilation=[1], before=[1], after=[1]}", True),
        ("exp %f", False),
    ],
)
def test_extremes_are_one_of_the_elements(statement: str, expected: bool) -> None:
    assert is_extreme(node(f"%y = {statement}")) is expected


def test_bools_have_no_extremes() -> None:
    assert not is_extreme(node("%b = gt %f, 0.0  %y = any %b {dims=[1]}"))


@pytest.mark.parametrize(
    ("statements", "known", "zero"),
    [
        ("%y = constant f32[2] [0.0, 0.0]", True, True),
        ("%y = constant f32[2] [0.0, 1.0]", True, False),
        ("%c = constant i8[] 0  %w = cast %c {dtype=f32}  %y = expand %w {shape=[3]}", True, True),
        ("%c = constant f32[] 0.0  %y = sin %c", True, False),
        ("%y = mul %f, 0.0", False, False),
        ("%y = permute %f {dims=[1, 0]}", False, False),
        ("%y = iota {size=1}", False, False),
    ],
)
def test_known_values_depend_on_constants(statements: str, known: bool, zero: bool) -> None:
    assert is_known(node(statements)) is known
    assert is_known_zero(node(statements)) is zero


def evaluate(p: Node, y: Node) -> torch.Tensor:
    """The value of `y`, which depends on `p` alone, for a `p` of different numbers."""
    shape = p.type.static_shape()
    (value,) = interpret(Graph((p,), (y,)), (torch.arange(float(prod(shape))).reshape(shape),))
    assert isinstance(value, torch.Tensor)
    return value


@st.composite
def views(draw: st.DrawFn) -> tuple[Node, Node]:
    """A parameter, and a view of a tensor that it broadcasts to."""
    shape = [draw(st.sampled_from([1, 2, 3, 4])) for _ in range(draw(st.integers(1, 3)))]
    own = [draw(st.sampled_from([1, d])) for d in shape][draw(st.integers(0, len(shape))) :]
    p = input_node("p", parse_type(f"f32{own}"))
    x = ops.expand(p, shape=shape)
    targets = [[12], [3, 4], [2, 6], [2, 2, 3], [6, 2, 1], [1, 4, 3], [24], [4, 6], [8], [2, 4], [2, 2, 2]]
    sizes = [t for t in targets if prod(t) == prod(shape)]
    size = draw(st.sampled_from([None, *sizes]))
    return p, ops.permute(x, dims=draw(st.permutations(range(len(shape))))) if size is None else ops.reshape(
        x, shape=size
    )


@given(views())
def test_a_placed_parameter_is_that_of_each_element_of_the_view(view: tuple[Node, Node]) -> None:
    """Those of permuted tensors always have a place; others that vary along two dimensions have one if a tensor broadcasts to them."""
    p, y = view
    assert isinstance(y.structure, IndexMap)
    (read,) = y.structure.reads(y, index_vars("i", y.type.rank))
    placed, expected = place(p, read.position, y.shape), evaluate(p, y)
    if placed is not None:
        assert torch.equal(evaluate(p, ops.expand(placed, shape=y.shape)), expected)
    else:
        assert y.op is not ops.permute
        first = [expected.narrow(k, 0, 1).expand_as(expected) for k in range(expected.ndim)]
        varying = [d for d, same in zip(expected.shape, first, strict=True) if not torch.equal(expected, same)]
        assert len(np.unique(expected)) < prod(varying) or sum(d != 1 for d in p.shape) > 2


@pytest.mark.parametrize("number", [0, 1])
def test_sums_of_an_operand_are_products_with_ones(number: int) -> None:
    g = parse_graph("graph(%x: i8[3, 2, 4], %w: i8[3, 4, 5]) { %y = matmul %x, %w {dtype=i32}  return %y }")
    x = g.inputs[number]
    sums = operand_sums(g.outputs[0], x, number, i32)
    assert sums is not None
    ones = constant_node(torch.ones(g.inputs[1 - number].shape, dtype=torch.int8).numpy())
    products = ops.matmul(*((x, ones) if number == 0 else (ones, x)), dtype=i32)
    check_equivalent(Graph((x,), (ops.expand(sums, shape=products.shape),)), Graph((x,), (products,)), exact=True)


def test_sums_of_parts_of_a_dimension_are_none() -> None:
    g = parse_graph(
        "graph(%x: f32[1, 4, 9], %w: f32[8, 4, 3]) { %y = conv %x, %w {stride=[1], dilation=[1]}  return %y }"
    )
    (y,) = g.outputs
    assert operand_sums(y, g.inputs[0], 0, f32) is None
    sums = operand_sums(y, g.inputs[1], 1, f32)
    assert sums is not None
    assert sums.shape == (1, 8, 1)
