"""Positions along a dimension, computed from its size: constants where the size is known."""

from __future__ import annotations

from compiler.frontend.promotion import TensorOrNumber, as_node
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import as_array
from compiler.ir.types import i64


def positions(n: Dim, start: TensorOrNumber = 0) -> Node:
    """The numbers start, start + 1, ... of `n` places, i64."""
    return ops.iota(size=n) if start == 0 else ops.add(ops.iota(size=n), as_node(start, i64))


def clamp_positions(position: Node, n: Dim) -> Node:
    """Places, i64, with those before the first of `n` and behind the last moved there."""
    return ops.minimum(ops.maximum(position, 0), as_node(n - 1, i64))


def slice_positions(first: TensorOrNumber | None, last: TensorOrNumber | None, step: int, n: Dim, count: Dim) -> Node:
    """The `count` places, i64, of a slice from `first` up to `last` of `n` elements, of which data decides one or the other.

    As in Python, negative numbers count from the end, and those outside end where the elements do.
    """
    size = as_node(n, i64)

    def bound(given: TensorOrNumber | None, default: Dim) -> Node:
        place = as_node(default if given is None else given, i64)
        return clamp_positions(ops.where(ops.lt(place, 0), ops.add(place, size), place), n + 1)

    start = bound(first, 0)
    length = ops.maximum(ops.sub(bound(last, n), start), 0)
    steps = ops.floor_divide(ops.add(length, step - 1), step) if step > 1 else length
    steps_taken = ops.count(steps, size=count)
    return ops.add(ops.mul(steps_taken, step) if step > 1 else steps_taken, start)


def fold_if_static(position: Node, *sizes: Dim) -> Node:
    """`place`, which no input feeds, as a constant if the `sizes` that it comes from are known."""
    if not all(isinstance(n, int) for n in sizes):
        return position
    (value,) = interpret(Graph((), (position,)), ())
    return constant_node(as_array(value))
