"""Conversions of indexed writes: assignments by index, scatters, and gradients of gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from compiler.frontend.conversions.creation import filled
from compiler.frontend.conversions.indexing import index_vectors, is_mask
from compiler.frontend.conversions.views import canonicalize_dim, expand, view
from compiler.frontend.promotion import TensorOrNumber, as_node
from compiler.frontend.registry import converts, converts_spatial
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.types import boolean, broadcast_shapes, i64

REDUCE_KINDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
"""Reduction of `ops.scatter` for each of PyTorch's names."""


def _reduce_kind(reduce: str, x: Node) -> str:
    """Return the reduction in the dtype of `x`: bools add by "or" (max) and multiply by "and" (min)."""
    return {"add": "max", "mul": "min"}.get(reduce, reduce) if x.dtype == boolean else reduce


def _scatter(x: Node, dim: int, indices: Node, values: Node, reduce: str = "set") -> Node:
    """Scatter `values` into `x`; tensors of rank 0 count as vectors of one element."""
    a, i, v = (n if n.type.rank else view(n, (1,)) for n in (x, indices, ops.as_dtype(values, x.dtype)))
    result = ops.scatter(a, i, v, dim=canonicalize_dim(dim, a.type.rank), reduce=_reduce_kind(reduce, x))
    return result if x.type.rank else view(result, ())


@converts("aten.scatter_reduce.two")
def scatter_reduce(x: Node, dim: int, indices: Node, values: Node, reduce: str, include_self: bool = True) -> Node:
    """Scatter with a PyTorch reduction; without `include_self`, written elements start at its identity."""
    written: Node | None = None
    if not include_self:
        nothing = ops.full(x.shape, False, boolean)
        written = _scatter(nothing, dim, indices, ops.full(indices.shape, True, boolean))

    def initial(base: Node, kind: str) -> Node:
        return base if written is None else ops.where(written, as_node(IDENTITIES[kind](base.dtype), base.dtype), base)

    if reduce != "mean":
        kind = _reduce_kind(REDUCE_KINDS[reduce], x)
        return _scatter(initial(x, kind), dim, indices, values, kind)
    total = _scatter(initial(x, "add"), dim, indices, values, "add")
    ones = ops.full(x.shape, 1, i64), ops.full(indices.shape, 1, i64)
    count = ops.as_dtype(_scatter(initial(ones[0], "add"), dim, indices, ones[1], "add"), x.dtype)
    return (ops.div if x.dtype.is_float else ops.floor_divide)(total, count)


@converts("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter(x: Node, dim: int, indices: Node, values: Node | float, reduce: str | None = None) -> Node:
    updates = values if isinstance(values, Node) else expand(as_node(values, x.dtype), indices.shape)
    return _scatter(x, dim, indices, updates, REDUCE_KINDS[reduce] if reduce else "set")


converts("aten.scatter_add.default")(partial(scatter, reduce="add"))


def _at_index_vector(
    write: Callable[..., Node], x: Node, dim: int, indices: Node, values: Node, *args: Any, **attrs: Any
) -> Node:
    """Call `write` with the vector `indices` along `dim` broadcast to the shape of `values`."""
    if not x.type.rank:
        return write(x, 0, view(indices, (indices.type.numel,)), values, *args, **attrs)
    d = canonicalize_dim(dim, x.type.rank)
    along = view(indices, tuple(indices.type.numel if k == d else 1 for k in range(x.type.rank)))
    return write(x, d, expand(along, values.shape), values, *args, **attrs)


converts("aten.index_copy.default")(partial(_at_index_vector, scatter))
converts("aten.index_reduce.default")(partial(_at_index_vector, scatter_reduce))


@converts("aten.index_add.default")
def index_add(x: Node, dim: int, indices: Node, values: Node, alpha: float = 1) -> Node:
    scaled = values if alpha == 1 else ops.mul(values, as_node(alpha, values.dtype))
    return _at_index_vector(scatter, x, dim, indices, scaled, reduce="add")


@converts("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(x: Node, dim: int, indices: Node, value: TensorOrNumber) -> Node:
    if not x.type.rank:
        return view(index_fill(view(x, (1,)), 0, indices, value), ())
    positions = view(indices, (indices.type.numel,))
    return ops.index_put(x, as_node(value, x.dtype), positions, dims=(canonicalize_dim(dim, x.type.rank),))


@converts("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    values = ops.as_dtype(values, x.dtype)
    tensors = [i for i in indices if i is not None]
    mask = tensors[0] if len(tensors) == 1 and is_mask(tensors[0]) else None
    count = None
    if mask is not None:
        trailing_dims = x.type.rank - mask.type.rank - indices.index(mask)
        if values.type.rank <= trailing_dims or values.shape[-1 - trailing_dims] == 1:
            return _masked_put(x, mask, trailing_dims, values, accumulate)
        count = values.shape[-1 - trailing_dims]
    vectors, dims = index_vectors(indices, count)
    return ops.index_put(x, values, *vectors, dims=dims, reduce=_reduce_kind("add" if accumulate else "set", x))


def _masked_put(x: Node, mask: Node, trailing_dims: int, values: Node, accumulate: bool) -> Node:
    """Assign the same `values` at every true element of a mask over all but the last `trailing_dims` dimensions."""
    selected = view(ops.as_dtype(mask, boolean), (*mask.shape, *(1,) * trailing_dims))
    if values.type.rank > trailing_dims:
        front, back = values.shape[: -1 - trailing_dims], values.shape[values.type.rank - trailing_dims :]
        values = view(values, (*front, *(1,) * mask.type.rank, *back))
    if accumulate:
        values = ops.or_(x, values) if x.dtype == boolean else ops.add(x, values)
    return ops.where(selected, values, x)


@converts("aten.put.default")
def put(x: Node, indices: Node, values: Node, accumulate: bool = False) -> Node:
    flat = [view(v, (v.type.numel,)) for v in (x, indices, values)]
    return view(index_put(flat[0], (flat[1],), flat[2], accumulate), x.shape)


@converts("aten.masked_scatter.default")
def masked_scatter(x: Node, mask: Node, values: Node) -> Node:
    """Write the k-th value to the k-th true element of the mask; a cumulative sum gives k.

    Elements where the mask is false read value 0; one is appended if there may be no values.
    """
    shape = broadcast_shapes(x.shape, mask.shape)
    x, flat = expand(x, shape), view(expand(mask, shape), (product(shape),))
    count = ops.cumsum(ops.as_dtype(flat, i64), dim=0)
    position = ops.where(flat, ops.sub(count, 1), 0)
    numel = values.type.numel
    source = view(values, (numel,))
    if not isinstance(numel, int) or numel == 0:
        source = ops.pad(source, before=[0], after=[1])
    selected = ops.index(source, position, dims=(0,))
    return view(ops.where(flat, selected, view(x, (x.type.numel,))), x.shape)


@converts("aten.embedding_dense_backward.default")
def embedding_backward(
    gradient: Node, indices: Node, rows: Dim, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Node:
    """Add every row of the gradient to the row of the table that it was read from."""
    (count, width), dtype = (indices.type.numel, gradient.shape[-1]), gradient.dtype
    row_ids, updates = view(indices, (count, 1)), view(gradient, (count, width))
    if padding_idx >= 0:
        updates = ops.where(ops.eq(row_ids, padding_idx), as_node(0, dtype), updates)
    if scale_grad_by_freq:
        flat = view(indices, (count,))
        uses = ops.scatter(ops.full((rows,), 0, i64), flat, ops.full((count,), 1, i64), dim=0, reduce="add")
        updates = ops.div(updates, ops.as_dtype(view(ops.take(uses, flat), (count, 1)), dtype))
    table = ops.full((rows, width), 0, dtype)
    return ops.scatter(table, expand(row_ids, updates.shape), updates, dim=0, reduce="add")


@converts("aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default")
def max_pool_backward(
    gradient: Node, x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, indices: Node,
) -> Node:  # fmt: skip
    return adaptive_max_pool_backward(len(kernel), gradient, x, indices)


@converts_spatial("aten.adaptive_max_pool#d_backward.default", 2, 3)
def adaptive_max_pool_backward(count: int, gradient: Node, x: Node, indices: Node) -> Node:
    """Add each gradient at the position of its maximum; `indices` number the flattened last `count` dimensions."""
    flat = [
        view(v, (*v.shape[:-count], product(v.shape[-count:])))
        for v in (filled(x.shape, 0, x.dtype), indices, gradient)
    ]
    return view(ops.scatter(*flat, dim=x.type.rank - count, reduce="add"), x.shape)
