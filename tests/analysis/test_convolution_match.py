"""windows: of all ops, convolutions over all channels alone have them, and their taps lie where lowering finds them."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.analysis.convolution_match import (
    ConvolutionWindow,
    TransposedWindow,
    match_convolution,
    match_transposed_convolution,
    match_zero_padding,
)
from compiler.analysis.reduction_domains import split_points
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPS, Node, Op, constant_node, input_node
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import TensorType, f32
from compiler.passes.graph.eliminate_padding import match_padded_convolution, without_padding

WITH_ATTRS = [pytest.param(o, id=o.name) for o in OPS.values() if o.attr_defaults and o.samples]


def nodes(op: Op) -> list[Node]:
    return [op(*(input_node(f"x{k}", parse_type(t)) for k, t in enumerate(s.types)), **s.attrs) for s in op.samples]


@pytest.mark.parametrize("op", WITH_ATTRS)
def test_convolutions_alone_have_windows(op: Op) -> None:
    for n in nodes(op):
        own = [n.attrs[name] for name in ("stride", "dilation", "groups")] if op is ops.conv else []
        assert match_convolution(n) == (ConvolutionWindow(*own) if own and not n.attrs["before"] else None)


@pytest.mark.parametrize("op", WITH_ATTRS)
def test_transposed_convolutions_alone_have_phases(op: Op) -> None:
    for n in nodes(op):
        expected = None
        if op is ops.conv_phases:
            taps = tuple(-(-k // s) for k, s in zip(n.operands[1].shape[2:], n.attrs["stride"], strict=True))
            expected = TransposedWindow(n.attrs["stride"], n.attrs["start"], taps, n.attrs["groups"])
        assert match_transposed_convolution(n) == expected


@pytest.mark.parametrize("op", WITH_ATTRS)
def test_paddings_alone_put_zeros_around(op: Op) -> None:
    for n in nodes(op):
        zeros = op is ops.pad and n.attrs["value"] == 0
        assert match_zero_padding(n) == (
            tuple(zip(n.attrs["before"], n.attrs["after"], strict=True)) if zeros else None
        )


@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 5), (3, 2), (2, 9)])
@pytest.mark.parametrize(("taps", "before", "after"), [(3, 2, 2), (4, 0, 5), (1, 3, 1), (2, 6, 0)])
def test_stretches_end_where_lowering_parts_loops(
    taps: int, before: int, after: int, stride: int, dilation: int
) -> None:
    x = input_node("x", TensorType(f32, (1, 4, 30)))
    wide = ops.pad(x, before=(0, 0, before), after=(0, 0, after))
    y = ops.conv(wide, constant_node(np.ones((16, 4, taps), np.float32)), stride=[stride], dilation=[dilation])
    c = match_padded_convolution(y, 16)
    assert c is not None
    ends = np.cumsum([length for length, _ in c.output_segments[0]])
    new = without_padding(c, (True,))
    assert {*ends[:-1]} == {p for p in split_points(Graph((x,), (new,)), new, 32).get(2, ()) if 0 < p < ends[-1]}
    assert ends[-1] == y.shape[2]
