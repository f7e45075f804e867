"""Index tensors along a dimension, computed from its size; constants if the size is static."""

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
    """Return start, start + 1, ... as i64[n]."""
    return ops.iota(size=n) if start == 0 else ops.add(ops.iota(size=n), as_node(start, i64))


def clamp_positions(position: Node, n: Dim) -> Node:
    """Clamp positions, i64, to 0..n - 1."""
    return ops.minimum(ops.maximum(position, 0), as_node(n - 1, i64))


def slice_positions(first: TensorOrNumber | None, last: TensorOrNumber | None, step: int, n: Dim, count: Dim) -> Node:
    """Return the positions, i64[count], of the slice first:last:step of `n` elements, with data-dependent bounds.

    As in Python, negative bounds count from the end, and bounds are clipped to 0..n.
    """
    size = as_node(n, i64)

    def bound(value: TensorOrNumber | None, default: Dim) -> Node:
        position = as_node(default if value is None else value, i64)
        return clamp_positions(ops.where(ops.lt(position, 0), ops.add(position, size), position), n + 1)

    start = bound(first, 0)
    length = ops.maximum(ops.sub(bound(last, n), start), 0)
    steps = ops.floor_divide(ops.add(length, step - 1), step) if step > 1 else length
    steps_taken = ops.sized_arange(steps, size=count)
    return ops.add(ops.mul(steps_taken, step) if step > 1 else steps_taken, start)


def fold_if_static(position: Node, *sizes: Dim) -> Node:
    """Return `position` as a constant if `sizes` are static; it must depend on no input, only on them."""
    if not all(isinstance(n, int) for n in sizes):
        return position
    (value,) = interpret(Graph((), (position,)), ())
    return constant_node(as_array(value))
