"""Counting and measuring by comparison with every candidate."""

from __future__ import annotations

from compiler.frontend.aten.reductions import vector_norm
from compiler.frontend.promotion import Value, as_node, common_dtype
from compiler.frontend.registry import Refusal, converts
from compiler.ir import ops
from compiler.ir.graph import Node
from compiler.ir.types import i32, i64

MANY = 256
"""Boundaries beyond which a binary search would beat counting."""


@converts("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(x: Value, boundaries: Node, out_int32: bool = False, right: bool = False) -> Node:
    """The number of boundaries below each element (not above it, with `right`); NaN is above them all."""
    if not isinstance(boundaries.shape[-1], int) or boundaries.shape[-1] > MANY:
        raise Refusal(f"a search among more than {MANY} boundaries")
    dtype = common_dtype(x, boundaries) if isinstance(x, Node) else boundaries.dtype
    element = ops.unsqueeze(as_node(x, dtype), -1)
    below = (ops.le if right else ops.lt)(ops.as_dtype(boundaries, dtype), element)
    if dtype.is_float:
        below = ops.or_(below, ops.isnan(element))
    return ops.sum_(ops.as_dtype(below, i32 if out_int32 else i64), dims=(below.type.rank - 1,))


@converts("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    boundaries: Node,
    x: Value,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    if sorter is not None:
        boundaries = ops.gather(boundaries, sorter, dim=boundaries.type.rank - 1)
    rows = ops.unsqueeze(boundaries, -2) if boundaries.type.rank > 1 else boundaries
    return bucketize(x, rows, out_int32, right or side == "right")


@converts("aten._cdist_forward.default")
def cdist(x: Node, y: Node, p: float, compute_mode: int | None) -> Node:
    """From differences: the form with a matrix product would cancel."""
    gap = ops.sub(ops.unsqueeze(x, -2), ops.unsqueeze(y, -3))
    return vector_norm(gap, p, (gap.type.rank - 1,))
