"""The graph interpreter: dtypes, float64 mode, composites, bodies and symbolic sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from compiler.errors import ArgumentError
from compiler.ir import ops
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, constant_node, input_node
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import (
    Composite,
    Gather,
    Guard,
    GuardedRead,
    IndexMap,
    Lookup,
    Reduction,
    ReductionDomain,
)
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.structure import evaluate_graph, evaluate_structure
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.torch_types import as_array, as_tensor
from compiler.ir.types import TensorType, bf16, f32, i64

X = input_node("x", TensorType(f32, (4,)))
VALUES = np.array([0.5, -1, 2, 3], np.float32)


def test_values_are_computed_in_the_declared_types() -> None:
    (y,) = interpret(
        parse_graph("graph(%x: bf16[2]) { %y = add %x, 1.0  return %y }"), [np.array([2**-9, 1], np.float32)]
    )
    assert y.dtype == torch.bfloat16
    assert y.tolist() == [1.0, 2.0]


def test_float64_mode_never_rounds() -> None:
    text = "graph(%x: f32[4]) { %a = cast %x {dtype=bf16}  %b = exp %a  %y = cast %b {dtype=f32}  return %y }"
    (y,) = interpret(parse_graph(text), [VALUES], dtype=torch.float64)
    np.testing.assert_array_equal(y.numpy(), np.exp(VALUES.astype(np.float64)))
    (rounded,) = interpret(parse_graph(text), [VALUES])
    assert not np.allclose(rounded.numpy(), y.numpy(), rtol=1e-4)


def test_bits_are_reread_in_their_own_width() -> None:
    text = "graph(%x: f32[4]) { %a = bitcast %x {dtype=i32}  %y = bitcast %a {dtype=f32}  return %y }"
    np.testing.assert_array_equal(interpret(parse_graph(text), [VALUES], dtype=torch.float64)[0], VALUES)


def test_constants_of_bf16_are_bits() -> None:
    data = ConstantData(bf16, to_storage(np.array([1.0, 2.5], np.float32), bf16))
    (y,) = interpret(Graph((), (constant_node(data),)), [])
    assert y.dtype == torch.bfloat16
    assert y.tolist() == [1.0, 2.5]


def test_symbolic_sizes_are_read_off_the_inputs() -> None:
    graph = parse_graph("graph(%x: f32[n*2, 3]) { %y = reshape %x {shape=[n, 6]}  return %y }")
    assert interpret(graph, [np.zeros((8, 3), np.float32)])[0].shape == (4, 6)
    with pytest.raises(ArgumentError, match="size 7 does not match"):
        interpret(graph, [np.zeros((7, 3), np.float32)])


def test_arguments_are_checked() -> None:
    graph = Graph((X,), (ops.exp(X),))
    with pytest.raises(ArgumentError, match="takes 1 inputs, got 2"):
        interpret(graph, [VALUES, VALUES])
    with pytest.raises(ArgumentError, match=r"%x must be f32\[4\], got torch.float32\[3\]"):
        interpret(graph, [torch.zeros(3)])
    with pytest.raises(ArgumentError, match=r"got torch.int64\[4\]"):
        interpret(graph, [torch.zeros(4, dtype=torch.int64)])


def test_a_composite_without_reference_is_expanded() -> None:
    twice = declare("test_composite", Composite(lambda n, x: ops.mul(ops.exp(x), x)), lambda s: s.types[0])
    (y,) = interpret(Graph((X,), (twice(X),)), [VALUES])
    np.testing.assert_allclose(y.numpy(), np.exp(VALUES) * VALUES, rtol=1e-6)
    np.testing.assert_allclose(evaluate_structure(twice(X), [VALUES]), np.exp(VALUES) * VALUES, rtol=1e-6)


def test_bodies_are_interpreted() -> None:
    a = input_node("a", X.type)
    both = ops.fused(X, body=Graph((a,), (ops.exp(a), ops.neg(a))))
    graph = Graph((X,), (ops.tuple_get(both, index=1), ops.tuple_get(both, index=0)))
    negated, grown = interpret(graph, [VALUES])
    np.testing.assert_array_equal(negated, -VALUES)
    np.testing.assert_allclose(grown, np.exp(VALUES), rtol=1e-6)


@pytest.mark.parametrize("dtype", [f32, bf16, i64])
def test_arrays_and_tensors_convert_both_ways(dtype) -> None:  # type: ignore[no-untyped-def]
    array = np.array([[1, 2], [3, 4]]).astype(dtype.numpy)[:, ::-1]
    np.testing.assert_array_equal(as_array(as_tensor(array, dtype)), array)


def declare(name, structure, type_, operands="x: any"):  # type: ignore[no-untyped-def]
    """An op that is not left in the registry."""
    declare_op(name, operands, structure, type_rule=type_)
    return OPS.pop(name)


def test_pieces_are_guarded_and_the_rest_is_filled() -> None:
    def pieces(n, i):  # type: ignore[no-untyped-def]
        return (GuardedRead(0, (i[0] - 1,), (Guard(i[0], 1, 5),)),)

    shifted = declare("test_shift", IndexMap(pieces, fill=lambda n: 9), lambda s: s.types[0].with_shape((6,)))
    np.testing.assert_array_equal(evaluate_structure(shifted(X), [VALUES]), [9, 0.5, -1, 2, 3, 9])


def test_lookups_wrap_and_are_checked() -> None:
    def position(n, i):  # type: ignore[no-untyped-def]
        return (Lookup(1, i, 4, wrap_negative=True),)

    take = declare(
        "test_take", Gather(position), lambda s: s.types[0].with_shape(s.types[1].shape), "x: any, i!: integer"
    )
    node = take(X, input_node("i", TensorType(i64, (3,))))
    np.testing.assert_array_equal(evaluate_structure(node, [VALUES, np.array([3, -4, 0])]), [3, 0.5, 0.5])
    with pytest.raises(IndexError, match="index 4 is out of bounds for extent 4"):
        evaluate_structure(node, [VALUES, np.array([4, 0, 0])])


def test_reductions_read_affine_positions() -> None:
    """A convolution in one dimension."""
    space = ReductionDomain((2,), lambda i, r: ((i[0] + r[0],), (r[0],)))
    products = Reduction("add", lambda n: space, lambda x, w: x * w)
    conv = declare("test_conv", products, lambda s: s.types[0].with_shape((3,)), "x: any, w: any")
    node = conv(X, input_node("w", TensorType(f32, (2,))))
    weights = np.array([2, -1], np.float32)
    np.testing.assert_allclose(evaluate_structure(node, [VALUES, weights]), np.correlate(VALUES, weights, "valid"))


def test_a_graph_is_evaluated_by_structure() -> None:
    graph = parse_graph("graph(%x: f32[2, 3]) { %a = exp %x  %s = sum %a {dims=[1]}  %y = log %s  return %y }")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = [math.log(sum(math.exp(v) for v in row)) for row in x.tolist()]
    np.testing.assert_allclose(evaluate_graph(graph, [x])[0], expected, rtol=1e-6)
