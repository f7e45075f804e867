"""Conversions of searches, histograms, distances and embedding bags."""

from __future__ import annotations

import numpy as np

from compiler.analysis.index_elements import index_element
from compiler.frontend.conversions.reductions import vector_norm
from compiler.frontend.conversions.views import expand, view
from compiler.frontend.promotion import TensorOrNumber, as_float, as_node, common_dtype
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, constant_node
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.ir.types import i32, i64

MAX_BOUNDARIES = 256
"""Maximum number of boundaries that are searched by counting; chosen empirically, a binary search is faster beyond."""


@converts("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(x: TensorOrNumber, boundaries: Node, out_int32: bool = False, right: bool = False) -> Node:
    """Count the boundaries below each element (at most equal to it, with `right`); NaN is above all boundaries."""
    if not isinstance(boundaries.shape[-1], int) or boundaries.shape[-1] > MAX_BOUNDARIES:
        raise ConversionError(
            f"a search among more than {MAX_BOUNDARIES}, or a symbolic number of, boundaries is not supported"
        )
    dtype = common_dtype(x, boundaries) if isinstance(x, Node) else boundaries.dtype
    element = ops.unsqueeze(as_node(x, dtype), -1)
    below = (ops.le if right else ops.lt)(ops.as_dtype(boundaries, dtype), element)
    if dtype.is_float:
        below = ops.or_(below, ops.isnan(element))
    return ops.sum_(ops.as_dtype(below, i32 if out_int32 else i64), dims=(below.type.rank - 1,))


@converts("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    boundaries: Node,
    x: TensorOrNumber,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    if sorter is not None:
        boundaries = ops.gather(boundaries, sorter, dim=boundaries.type.rank - 1)
    rows = ops.unsqueeze(boundaries, -2) if boundaries.type.rank > 1 else boundaries
    return bucketize(x, rows, out_int32, right or side == "right")


@converts("aten.cdist.default", "aten._cdist_forward.default")
def cdist(x: Node, y: Node, p: float = 2, compute_mode: int | None = None) -> Node:
    """Compute distances from differences; the form with a matrix product suffers from cancellation."""
    difference = ops.sub(ops.unsqueeze(x, -2), ops.unsqueeze(y, -3))
    return vector_norm(difference, p, (difference.type.rank - 1,))


@converts("aten._pdist_forward.default")
def pdist(x: Node, p: float = 2) -> Node:
    """Return the distance of every pair of rows i < j."""
    if not isinstance(x.shape[0], int):
        raise ConversionError("pairwise distances of a symbolic number of rows are not supported")
    first, second = np.triu_indices(x.shape[0], 1)
    difference = ops.sub(ops.take(x, constant_node(first), dim=0), ops.take(x, constant_node(second), dim=0))
    return vector_norm(difference, p, (1,))


@converts("aten.histc.default")
def histc(x: Node, bins: int = 100, min: float = 0, max: float = 0) -> Node:
    """Count the elements in each of `bins` equal intervals; if min == max, the data's range is used."""
    flat = view(x, (x.type.numel,))
    low, high = as_node(min, x.dtype), as_node(max, x.dtype)
    if min == max and flat.type.numel != 0:
        low, high = ops.amin(flat, dims=(0,)), ops.amax(flat, dims=(0,))
    is_point = ops.eq(low, high)
    low, high = ops.where(is_point, ops.sub(low, 1), low), ops.where(is_point, ops.add(high, 1), high)
    inside = ops.and_(ops.ge(flat, low), ops.le(flat, high))
    bin_number = ops.div(ops.mul(as_float(ops.sub(flat, low)), float(bins)), as_float(ops.sub(high, low)))
    index = ops.minimum(ops.as_dtype(ops.where(inside, bin_number, 0.0), i64), bins - 1)
    return ops.scatter(ops.full((bins,), 0, x.dtype), index, ops.as_dtype(inside, x.dtype), dim=0, reduce="add")


MEAN_MODE, MAX_MODE = 1, 2
"""Modes of `aten::_embedding_bag`; 0 is the sum."""


@converts("aten._embedding_bag_forward_only.default")
def embedding_bag(
    weight: Node, indices: Node, offsets: Node, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Node | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Node | None, ...]:  # fmt: skip
    """Reduce the table rows of each bag by sum, mean or maximum; `offsets` holds the first index of each bag."""
    bags, count = offsets.shape[0] - (1 if include_last_offset else 0), indices.shape[0]
    starts = ops.as_dtype(ops.slice_(offsets, dim=0, start=0, size=bags), i64)
    length = equal_length(starts, count)
    bag = bag_of_each_index(starts, count) if length is None else None

    def of_bags(x: Node, reduce: str) -> Node:
        """Combine the elements, or rows, of each bag."""
        if bag is None:
            parts = ops.reshape(x, shape=(bags, length, *x.shape[1:]))
            return (ops.amax if reduce == "max" else ops.sum_)(parts, dims=(1,))
        initial = ops.full((bags, *x.shape[1:]), float("-inf") if reduce == "max" else 0, x.dtype)
        ids = bag if x.type.rank == 1 else expand(ops.unsqueeze(bag, 1), x.shape)
        return ops.scatter(initial, ids, x, dim=0, reduce=reduce)

    rows = ops.take(weight, indices, dim=0)
    rows = rows if per_sample_weights is None else ops.mul(rows, ops.unsqueeze(per_sample_weights, 1))
    valid = ops.ne(indices, padding_idx)
    if padding_idx >= 0:
        rows = ops.where(ops.unsqueeze(valid, 1), rows, float("-inf") if mode == MAX_MODE else 0.0)
    y = of_bags(rows, "max" if mode == MAX_MODE else "add")
    if padding_idx < 0 and length is not None:
        return (ops.div(y, as_node(length, y.dtype)) if mode == MEAN_MODE else y), None, None, None
    sizes = ops.unsqueeze(of_bags(ops.as_dtype(valid, i64), "add"), 1)
    if mode == MEAN_MODE:
        y = ops.div(y, ops.as_dtype(ops.maximum(sizes, 1), y.dtype))
    if mode == MAX_MODE:
        y = ops.where(ops.eq(sizes, 0), 0.0, y)
    return y, None, None, None


def equal_length(starts: Node, count: Dim) -> Dim | None:
    """Return the length of each bag if all have the same, which the first indices and the number of indices tell; else None."""
    bag = var("i0")
    first, second = (index_element(starts, (d,)) for d in (bag, bag + 1))
    length = None if first is None or second is None else second - first
    has_same = length is not None and length != 0 and first == bag * length and starts.shape[0] * length == count
    return length if has_same else None


def bag_of_each_index(starts: Node, count: Dim) -> Node:
    """Return the number of the bag that each of `count` indices is in."""
    ones = ops.full(starts.shape, 1, i64)
    begins = ops.scatter(ops.full((count + 1,), 0, i64), starts, ones, dim=0, reduce="add")
    return ops.sub(ops.cumsum(ops.slice_(begins, dim=0, start=0, size=count), dim=0), 1)


@converts("aten.embedding_bag.padding_idx")
def embedding_bag_of_rows(
    weight: Node, indices: Node, offsets: Node, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Node | None,
    include_last_offset: bool, padding_idx: int | None,
) -> tuple[Node | None, ...]:  # fmt: skip
    """Reduce bags without the row `padding_idx`, which counts from the last row if it is negative."""
    ignored = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, ignored
    )
