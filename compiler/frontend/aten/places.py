"""Positions along a dimension, computed from its size: constants where the size is known."""

from __future__ import annotations

from compiler.frontend.promotion import as_node
from compiler.ir import ops
from compiler.ir.graph import Graph, Node, constant
from compiler.ir.index import Dim
from compiler.ir.interpret_graph import interpret
from compiler.ir.torch_types import as_array
from compiler.ir.types import i64


def positions(n: Dim, start: Dim = 0) -> Node:
    """The numbers start, start + 1, ... of `n` places, i64."""
    return ops.iota(size=n) if start == 0 else ops.add(ops.iota(size=n), as_node(start, i64))


def clipped(place: Node, n: Dim) -> Node:
    """Places, i64, with those before the first of `n` and behind the last moved there."""
    return ops.minimum(ops.maximum(place, 0), as_node(n - 1, i64))


def settled(place: Node, *sizes: Dim) -> Node:
    """`place`, which no input feeds, as a constant if the `sizes` that it comes from are known."""
    if not all(isinstance(n, int) for n in sizes):
        return place
    (value,) = interpret(Graph((), (place,)), ())
    return constant(as_array(value))
