"""Conversions that op declarations imply by naming an overload (`aten=`)."""

from __future__ import annotations

import pytest
import torch

from compiler.frontend.conversions.table import conversions, implied_conversion
from compiler.ir import ops
from compiler.ir.graph.node import OPS, Op, input_node
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.text.type_parser import parse_type


def test_every_declared_overload_has_a_conversion() -> None:
    assert {name for op in OPS.values() for name in op.aten} <= conversions().keys()


def test_an_op_that_is_declared_later_is_converted() -> None:
    """As in a notebook, where a compilation has failed for lack of it."""
    assert "tests.successor.default" not in conversions()
    library = torch.library.Library("tests", "DEF")
    library.define("successor(Tensor x) -> Tensor")
    declare_op("successor", "x: float", Elementwise(lambda x: x + 1), aten="tests.successor.default")
    try:
        assert "tests.successor.default" in conversions()
    finally:
        del OPS["successor"]


def test_ops_of_any_structure_convert_argument_by_argument() -> None:
    x = input_node("x", parse_type("f32[3, 4]"))
    largest = implied_conversion(ops.amax, "aten.amax.default")(x, [1], False)
    assert str(largest.type) == "f32[3]"
    assert largest.op is ops.amax


@pytest.mark.parametrize(
    ("op", "overload"),
    [
        (ops.cat, "aten.cat.default"),  # a list of tensors
        (ops.where, "aten.where.self"),  # the condition is not promoted
        (ops.sort, "aten.sort.default"),  # two results
        (ops.add, "aten.add.Tensor"),  # op has no alpha
        (ops.relu, "aten.mm.default"),  # more tensors than operands
    ],
)
def test_overloads_that_do_not_fit_are_rejected(op: Op, overload: str) -> None:
    with pytest.raises(ValueError, match=f"{overload} does not map one to one to op {op.name}; write a conversion"):
        implied_conversion(op, overload)
