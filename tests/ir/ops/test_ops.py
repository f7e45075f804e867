"""Every declared op, on every sample: type rule against reference, structure against the reference in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import compiler.ir.ops  # noqa: F401  (fills the registry)
from compiler.errors import TypeRuleError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Op, SampleInput, input_node
from compiler.ir.graph.structure import ControlFlow, Fused, IndexMap, Leaf, Opaque, Recurrence
from compiler.ir.interpret.graph import interpret
from compiler.ir.interpret.structure import evaluate_structure
from compiler.ir.scalar import round_to
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.type_parser import parse_type
from compiler.ir.torch_types import as_array, to_torch
from compiler.ir.types import DTYPES, DType, TensorType, f32, i64

CASES = [pytest.param(o, s, id=f"{o.name}-{k}") for o in OPS.values() for k, s in enumerate(o.samples)]
REDUCED = [d for d in DTYPES.values() if d.is_reduced_float]
TOLERANCE = {"f64": 1e-12, "f32": 2e-6, **{d.name: 2 * 2.0**-d.float_format.mantissa_bits for d in REDUCED}}


def _elements(t: TensorType, s: SampleInput, rng: np.random.Generator) -> np.ndarray:
    shape = t.static_shape()
    if t.dtype.is_float:
        return np.asarray(round_to(rng.uniform(s.low, s.high, shape), t.dtype))
    if t.dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    low = max(int(s.low), 0) if t.dtype.kind == "uint" else int(s.low)
    return rng.integers(low, max(int(s.high), low + 1), shape).astype(t.dtype.numpy)


def _case(op: Op, s: SampleInput) -> tuple[Node, list[np.ndarray]]:
    rng = np.random.default_rng(sum(map(ord, op.name)))
    types = [parse_type(t) for t in s.types]
    inputs = [input_node(f"x{k}", t) for k, t in enumerate(types)]
    return op(*inputs, **s.attrs), [_elements(t, s, rng) for t in types]


@pytest.mark.parametrize(("op", "s"), CASES)
def test_type_rule(op: Op, s: SampleInput) -> None:
    node, arrays = _case(op, s)
    tensors = [torch.from_numpy(a).to(to_torch(o.dtype)) for a, o in zip(arrays, node.operands, strict=True)]
    result = op.reference(*tensors, **node.attrs)  # type: ignore[misc]
    got = result if isinstance(result, tuple) else (result,)
    assert [(to_torch(t.dtype), t.shape) for t in node.result_types] == [(r.dtype, tuple(r.shape)) for r in got]


@pytest.mark.parametrize(("op", "s"), [c for c in CASES if not isinstance(c.values[0].structure, Opaque)])
def test_structure(op: Op, s: SampleInput) -> None:
    node, arrays = _case(op, s)
    graph = Graph(node.operands, (node,))
    wide = None if op is ops.bitcast else torch.float64  # bits are not numbers
    truth = as_array(interpret(graph, arrays, dtype=wide)[0])
    got = evaluate_structure(node, arrays)
    assert got.shape == truth.shape
    if not node.dtype.is_float:
        np.testing.assert_array_equal(got, truth)
        return
    rounding = TOLERANCE[_coarsest(node).name]
    scale = (
        max(1.0, np.nanmax(np.abs(truth[np.isfinite(truth)]), initial=0.0)) if op.name not in EXACT_NEAR_ZERO else 1.0
    )
    np.testing.assert_allclose(got.astype(np.float64), truth, rtol=rounding, atol=rounding * scale)


EXACT_NEAR_ZERO = ("expm1", "log1p", "asinh", "sinh", "tanh", "atanh")


def _coarsest(node: Node) -> DType:
    floats = [o.dtype for o in node.operands if o.dtype.is_float] + [node.dtype]
    return max(floats, key=lambda d: TOLERANCE[d.name])


def test_every_op_is_tried() -> None:
    missing = [
        o.name
        for o in OPS.values()
        if not o.samples and not isinstance(o.structure, (Leaf, Fused, Recurrence, ControlFlow))
    ]
    assert missing == ["tuple_get", "eager", "effect", "sized_arange"]


def _x(*shape: object, dtype: DType = f32) -> Node:
    return input_node("x", TensorType(dtype, tuple(shape)))  # type: ignore[arg-type]


def test_symbolic_shapes_pass_type_rules() -> None:
    s, t = var("s"), var("t")
    x = _x(s, t, 4)
    assert ops.reshape(x, shape=(s * t, 4)).shape == (s * t, 4)
    assert ops.add(x, _x(t, 1)).shape == (s, t, 4)
    assert ops.sum_(x, dims=[1], keepdim=True).shape == (s, 1, 4)
    assert ops.matmul(x, _x(4, s)).shape == (s, t, s)
    assert ops.cat(x, _x(s, 3, 4), dim=1).shape == (s, t + 3, 4)
    assert ops.slice_(x, dim=1, start=1, size=t - 1).shape == (s, t - 1, 4)
    assert ops.pad(x, before=[0, 1, 0], after=[0, 1, 0]).shape == (s, t + 2, 4)
    assert ops.mean(x, dims=[0, 1]).shape == (4,)


def test_reshape_keeps_dimensions_apart_that_need_no_mixing() -> None:
    s = var("s")
    x = _x(s, 12, 64)
    y = ops.reshape(x, shape=(1, s, 4, 3, 64))
    i, j, k = var("i"), var("j"), var("k")
    (piece,) = y.structure.reads(y, (0, i, j, 0, k))  # type: ignore[union-attr]
    assert piece.position == (i, j * 3, k)
    assert y.structure.inverse(y, (i, 0, k)) == (0, i, 0, 0, k)  # type: ignore[union-attr, misc]


@pytest.mark.parametrize(
    ("op", "s"), [c for c in CASES if isinstance(m := c.values[0].structure, IndexMap) and m.inverse]
)
def test_elements_are_stored_where_they_are_read(op: Op, s: SampleInput) -> None:
    """`push` of a view undoes its map; a slice with steps has none."""
    node, _ = _case(op, s)
    assert isinstance(node.structure, IndexMap)
    assert node.structure.inverse is not None
    for place in np.ndindex(*node.type.static_shape()):
        (piece,) = node.structure.reads(node, place)
        assert node.structure.inverse(node, piece.position) == (place if abs(node.attrs.get("step", 1)) == 1 else None)


def grouped_attention(q: Node) -> Node:
    return ops.attention(q, _x(2, 5, 3), _x(2, 5, 3), scale=1.0, grouped=True)


def pooled(extent: int, size: int, stride: int) -> Node:
    return ops.sum_pool(_x(extent), size=(size,), stride=(stride,), dilation=(1,))


def transposed(*bias: Node, padding: tuple[int, ...] = (0,)) -> Node:
    one = dict.fromkeys(("stride", "dilation"), (1,))
    return ops.conv_transposed(_x(1, 3, 4), _x(3, 2, 1), *bias, **one, padding=padding, output_padding=(0,))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.add(_x(4), _x(4, dtype=i64)), "operand y has dtype i64, expected f32; insert a cast"),
        (lambda: ops.add(_x(4), _x(3)), "do not broadcast"),
        (lambda: ops.reshape(_x(4), shape=(5,)), "4 elements cannot have shape [5]"),
        (lambda: ops.permute(_x(4, 5), dims=(0, 0)), "not a permutation of the dimensions"),
        (lambda: ops.sum_(_x(4), dims=(1,)), "dimension 1 is out of range"),
        (lambda: ops.matmul(_x(4, 5), _x(4, 5)), "inner dimensions differ: 5 columns, 4 rows"),
        (lambda: ops.slice_(_x(4), dim=0, start=2, size=3), "not all inside"),
        (lambda: grouped_attention(_x(4, 3)), "with a head dimension"),
        (lambda: grouped_attention(_x(3, 4, 3)), "3 heads of q are not a multiple of 2 heads of k"),
        (
            lambda: ops.attention(_x(5, 8), _x(7, 8), _x(7, 8), _x(2, 1, 7), scale=1.0),
            "mask of shape [2, 1, 7] does not broadcast to the scores, [5, 7]",
        ),
        (
            lambda: ops.attention(_x(1, 8), _x(7, 8), _x(7, 8), _x(5, 7), scale=1.0),
            "mask of shape [5, 7] does not broadcast to the scores, [1, 7]",
        ),
        (lambda: ops.tuple_get(_x(4), index=0), "must have several results"),
        (lambda: pooled(1, size=2, stride=5), "a window of 2 elements, 1 apart, is larger than the input's 1"),
        (lambda: pooled(4, size=2, stride=0), "stride must be positive, not 0"),
        (lambda: ops.unfold(_x(4), dim=0, size=5, step=3), "larger than the input's 4"),
        (lambda: ops.conv(_x(1, 1, 4), _x(1, 1, 5), stride=(3,), dilation=(1,)), "larger than the input's 4"),
        (lambda: transposed(_x(3)), "the bias must have 2 elements"),
        (lambda: transposed(padding=(0, 0)), "padding has 2 entries for 1 window dimensions"),
        (lambda: ops.neg(ops.topk(_x(4), k=2, dim=0)), "read one with tuple_get"),
    ],
)
def test_refusals(build: object, message: str) -> None:
    with pytest.raises(TypeRuleError) as caught:
        build()  # type: ignore[operator]
    assert message in str(caught.value)


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 1e-30, 88.0, -104.0, 1e30, 3.5], np.float32
)
UNARY = [o for o in OPS.values() if len(o.operand_specs) == 1 and not o.operand_specs[0].variadic and o.samples and not o.attr_defaults
         and type(o.structure).__name__ == "Elementwise" and o.operand_specs[0].kind in ("float", "number")]  # fmt: skip
BINARY = [
    OPS[n]
    for n in (
        "add",
        "div",
        "floor_divide",
        "remainder",
        "fmod",
        "trunc_divide",
        "pow",
        "atan2",
        "minimum",
        "maximum",
    )
]


@pytest.mark.parametrize("op", UNARY, ids=lambda o: o.name)
def test_unary_on_special_values(op: Op) -> None:
    x = input_node("x", TensorType(f32, SPECIAL.shape))
    truth = op.reference(torch.from_numpy(SPECIAL))  # type: ignore[misc]  # f32: overflow belongs to the answer
    np.testing.assert_allclose(evaluate_structure(op(x), [SPECIAL]), truth.numpy(), rtol=4e-6, atol=1e-37)


@pytest.mark.parametrize("op", BINARY, ids=lambda o: o.name)
def test_binary_on_special_values(op: Op) -> None:
    n = len(SPECIAL)
    x, y = input_node("x", TensorType(f32, (n, 1))), input_node("y", TensorType(f32, (n,)))
    truth = op.reference(torch.from_numpy(SPECIAL)[:, None], torch.from_numpy(SPECIAL))  # type: ignore[misc]
    got = evaluate_structure(op(x, y), [SPECIAL[:, None], SPECIAL])
    np.testing.assert_allclose(got, truth.numpy(), rtol=4e-6, atol=1e-37)
    exact = np.isfinite(got) & (got == 0)
    assert np.array_equal(np.signbit(got[exact]), np.signbit(truth.numpy()[exact])) or op.name in (
        "add",
        "minimum",
        "maximum",
    )


def test_integer_division_rounds_as_pytorch_does() -> None:
    x, y = np.arange(-9, 10, dtype=np.int64)[:, None], np.array([-4, -3, -1, 1, 3, 4])
    nodes = [input_node("x", TensorType(i64, x.shape)), input_node("y", TensorType(i64, y.shape))]
    for op in (ops.floor_divide, ops.remainder, ops.fmod, ops.trunc_divide):
        truth = op.reference(torch.from_numpy(x), torch.from_numpy(y))  # type: ignore[misc]
        np.testing.assert_array_equal(evaluate_structure(op(*nodes), [x, y]), truth.numpy())


def test_argmax_takes_the_first_of_equals_and_nan_before_all() -> None:
    x = np.array([[1, 3, 3, 2], [np.nan, 5, np.nan, 1], [-np.inf] * 4], np.float32)
    node = ops.argmax(input_node("x", TensorType(f32, x.shape)), dim=1)
    np.testing.assert_array_equal(evaluate_structure(node, [x]), torch.argmax(torch.from_numpy(x), 1).numpy())


def test_attention_gives_zeros_where_everything_is_masked() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 3, 4)).astype(np.float32) for _ in range(3))
    mask = np.ones((3, 3), np.bool_)
    mask[1] = False
    types = [*(TensorType(f32, a.shape) for a in (q, k, v)), parse_type("bool[3, 3]")]
    node = ops.attention(*(input_node(f"x{n}", t) for n, t in enumerate(types)), scale=0.5)
    got = evaluate_structure(node, [q, k, v, mask])
    assert (got[:, 1] == 0).all()
    assert np.isfinite(got).all()


def test_layer_norm_far_from_zero_is_as_accurate_as_pytorch() -> None:
    x = np.random.default_rng(0).uniform(99, 101, (4, 256)).astype(np.float32)
    node = ops.layer_norm(input_node("x", TensorType(f32, x.shape)))
    truth = torch.nn.functional.layer_norm(torch.from_numpy(x).double(), (256,)).numpy()
    theirs = torch.nn.functional.layer_norm(torch.from_numpy(x), (256,)).numpy()
    assert np.abs(evaluate_structure(node, [x]) - truth).max() <= 2 * max(np.abs(theirs - truth).max(), 1e-5)


@pytest.mark.parametrize("op", [ops.fmod, ops.remainder])
def test_subnormal_divisors_have_remainders(op: Op) -> None:
    """PyTorch's vectors give NaN for them, its scalars do not."""
    x, y = (input_node(name, TensorType(f32, (40,))) for name in "xy")
    divisors = torch.full((40,), 9.1835e-41)
    (got,) = interpret(Graph((x, y), (op(x, y),)), (torch.full((40,), 2.0), divisors))
    assert got.tolist() == torch.fmod(torch.full((40,), 2.0).double(), divisors.double()).float().tolist()
