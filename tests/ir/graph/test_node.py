"""Ops and nodes: type rules, attributes, operands and constants."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np
import pytest

from compiler.errors import Loc, TypeRuleError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import (
    OPERAND_KINDS,
    OPS,
    Node,
    constant_node,
    flatten_nested,
    freeze,
    input_node,
    is_int_like,
    scalar_constant,
    scalar_value,
)
from compiler.ir.symbolic.index_expr import var
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import KERNEL_DTYPES, DType, bf16, boolean, f32, f64, i64


def node(text: str, name: str = "x", loc: Loc | None = None) -> Node:
    """An input of the type that `text` spells."""
    return input_node(name, parse_type(text), loc)


X, Y, IDS, MASK = node("f32[4, 8]"), node("f32[8]", "y"), node("i64[4]", "ids"), node("bool[4, 8]", "mask")


def test_call_infers_type_and_keeps_operands() -> None:
    n = ops.add(X, Y)
    assert str(n.type) == "f32[4, 8]"
    assert n.shape == (4, 8)
    assert n.dtype is f32
    assert n.operands == (X, Y)
    assert n.structure is ops.add.structure
    assert repr(n.with_name("z")) == "%z: f32[4, 8] = add(%x, %y)"


@pytest.mark.parametrize(("dtype", "x"), [(f32, X), (i64, IDS)])
def test_python_number_becomes_constant_of_the_other_dtype(dtype: DType, x: Node) -> None:
    for n in (ops.mul(x, 2), ops.mul(2, x)):
        (constant,) = (o for o in n.operands if o is not x)
        assert constant.dtype == dtype
        assert scalar_value(constant) == 2


def test_bool_operand_does_not_set_the_dtype_of_a_number() -> None:
    assert ops.where(MASK, X, 0).operands[2].dtype == f32


def test_attributes_get_defaults_and_become_tuples() -> None:
    n = ops.sum_(X, dims=[1])
    assert n.attrs["dims"] == (1,)
    assert n.attrs["keepdim"] is False


ERRORS: dict[str, tuple[Any, str]] = {
    "unknown attribute": (lambda: ops.sum_(X, dims=[1], axis=0), r"sum: unknown axis \(attributes are dims"),
    "missing attribute": (lambda: ops.slice_(X, start=1), "slice: missing dim, size"),
    "attribute no number": (lambda: ops.pad(X, before=[0, 0], after=[0, 0], value="a"), "value must be a number"),
    "attribute no integer": (lambda: ops.sum_(X, dims=[0.5]), "dims must be an integer or a list of integers"),
    "too few operands": (lambda: ops.add(X), "add.*: takes 2 operands"),
    "too many operands": (lambda: ops.exp(X, X), "exp.*: takes 1 operands"),
    "kind": (lambda: ops.exp(IDS), r"exp\(i64\[4\]\): operand x must be float, not i64"),
    "dtype": (lambda: ops.add(X, node("f64[8]")), "has dtype f64, expected f32; insert a cast"),
    "shape": (lambda: ops.add(X, node("f32[7]")), "do not broadcast"),
    "dimension": (lambda: ops.sum_(X, dims=[5]), "sum"),
    "several results": (lambda: ops.exp(ops.topk(X, k=2, dim=1, largest=True)), "read one with tuple_get"),
    "one result": (lambda: ops.tuple_get(X, index=0), "must have several results"),
    "leaf": (lambda: OPS["input"](name="x"), "use input_node"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_refuses(case: str) -> None:
    build, message = ERRORS[case]
    with pytest.raises(TypeRuleError, match=message):
        build()


def test_node_with_several_results_has_no_single_type() -> None:
    pair = ops.topk(X, k=2, dim=1, largest=True)
    assert isinstance(pair.result_type, tuple)
    with pytest.raises(AssertionError, match="topk has several results; read one with tuple_get"):
        _ = pair.type
    assert ops.tuple_get(pair, index=1).dtype == i64


def test_other_operands_infer_the_type_again() -> None:
    n = ops.sum_(X, dims=[0]).with_name("s")
    assert n.with_operands((X,)) is n
    other = n.with_operands((node("f64[5, 6, 7]"),))
    assert (str(other.type), other.name, other.attrs) == ("f64[6, 7]", "s", n.attrs)


def test_location_is_given_or_that_of_the_last_operand() -> None:
    a, b = Loc("a.py", 1), Loc("b.py", 2)
    x, y = node("f32[4]", "x", a), node("f32[4]", "y", b)
    assert ops.add(x, y).loc == b
    assert ops.add(y, x).loc == a
    assert ops.add(x, y, loc=a).loc == a
    assert ops.add(x, y).with_loc(None).loc is None


def test_nodes_compare_by_identity() -> None:
    one, other = ops.exp(X), ops.exp(X)
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.parametrize("name", sorted(KERNEL_DTYPES))
def test_scalar_constant_returns_its_value(name: str) -> None:
    value = True if name == "bool" else 1
    n = scalar_constant(value, KERNEL_DTYPES[name])
    assert n.shape == ()
    assert scalar_value(n) == value


def test_scalar_value_of_other_nodes_is_none() -> None:
    assert scalar_value(X) is None
    assert scalar_value(ops.exp(constant_node(np.float32(1)))) is None
    assert scalar_value(constant_node(np.ones(2, np.float32))) is None
    assert scalar_value(constant_node(np.full((1, 1), 3, np.int64))) == 3


def test_constant_infers_dtype_from_its_array() -> None:
    assert constant_node(np.ones((2, 3))).dtype == f64
    assert constant_node(np.ones((2, 3), bool)).dtype == boolean
    bits = constant_node(np.full(2, 0x3F80, np.uint16), bf16, name="w")
    assert (str(bits.type), bits.name) == ("bf16[2]", "w")
    np.testing.assert_array_equal(bits.attrs["value"].numpy_values, [1, 1])
    assert constant_node(np.ones((2, 3)).T).attrs["value"].array.flags.c_contiguous


def test_operand_kinds_accept_dtypes() -> None:
    accepted = {kind: {n for n, d in KERNEL_DTYPES.items() if test(d)} for kind, test in OPERAND_KINDS.items()}
    assert accepted["float"] == {n for n in KERNEL_DTYPES if n.startswith(("f", "bf"))}
    assert accepted["integer"] == {"i64", "i32", "i16", "i8", "u8"}
    assert accepted["number"] == accepted["float"] | accepted["integer"]
    assert accepted["bits"] == accepted["integer"] | accepted["bool"]
    assert accepted["bool"] == {"bool"}
    assert accepted["any"] == accepted["every"] == set(KERNEL_DTYPES)
    assert accepted["tuple"] == set()


def test_freezes_and_flattens_nested_lists() -> None:
    assert freeze([1, [2, (3,)], "a"]) == (1, (2, (3,)), "a")
    assert list(flatten_nested((1, (2, (3,)), 4))) == [1, 2, 3, 4]
    assert list(flatten_nested(5)) == [5]
    assert [is_int_like(v) for v in (1, var("n") + 1, 1.0, "1")] == [True, True, False, False]


def test_sorting_refuses_float8_which_pytorch_does_not_sort() -> None:
    with pytest.raises(TypeRuleError, match="operand x must be ordered, not f8e5m2"):
        ops.sort(node("f8e5m2[4, 8]"), dim=1)


def test_a_graph_as_a_networkx_graph() -> None:
    view = Graph((X, Y), (ops.relu(ops.add(X, Y)),)).to_networkx()
    assert [view.nodes[n]["op"] for n in networkx.topological_sort(view)][-2:] == ["add", "relu"]
    assert view.number_of_edges() == 3
