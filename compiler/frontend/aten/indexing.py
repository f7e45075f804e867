"""Look-ups, scatters and indexing by tensors."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.aten.views import axis, expand, view
from compiler.frontend.promotion import as_node
from compiler.frontend.registry import Refusal, converts
from compiler.ir import ops
from compiler.ir.graph import Node
from compiler.ir.types import boolean, broadcast_shapes, u8


@converts("aten.embedding.default")
def embedding(
    weight: Node, indices: Node, padding_idx: int = -1, scale_by_freq: bool = False, sparse: bool = False
) -> Node:
    return ops.take(weight, indices, dim=0)


@converts("aten.index_select.default")
def index_select(x: Node, dim: int, indices: Node) -> Node:
    picked = ops.take(
        x if x.type.rank else view(x, (1,)), view(indices, (indices.type.numel,)), dim=axis(dim, x.type.rank)
    )
    return picked if x.type.rank else view(picked, ())


@converts("aten.gather.default")
def gather(x: Node, dim: int, indices: Node, sparse_grad: bool = False) -> Node:
    if not x.type.rank:
        x, flat = view(x, (1,)), view(indices, (indices.type.numel,))
        return view(ops.gather(x, flat, dim=0), indices.shape)
    return ops.gather(x, indices, dim=axis(dim, x.type.rank))


@converts("aten.take.default")
def take(x: Node, indices: Node) -> Node:
    return ops.index(view(x, (x.type.numel,)), indices, dims=(0,))


def _located(indices: Sequence[Node | None], what: str) -> tuple[list[Node], tuple[int, ...]]:
    """The given index tensors and their dimensions."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype in (boolean, u8) for _, i in given):
        raise Refusal(f"{what} by a mask has a size that depends on data; use torch.where")
    return [i for _, i in given], tuple(d for d, _ in given)


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(x: Node, indices: Sequence[Node | None]) -> Node:
    given, dims = _located(indices, "indexing")
    return ops.index(x, *given, dims=dims) if given else x


@converts("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    masks = [i for i in indices if i is not None and i.dtype == boolean]
    if len(masks) == 1 and len(indices) == 1 and not values.type.rank and not accumulate:
        mask = view(masks[0], (*masks[0].shape, *(1,) * (x.type.rank - masks[0].type.rank)))
        return ops.where(mask, ops.as_dtype(values, x.dtype), x)
    given, dims = _located(indices, "assigning")
    return ops.index_put(x, ops.as_dtype(values, x.dtype), *given, dims=dims, accumulate=accumulate)


def _scattered(x: Node, dim: int, indices: Node, values: Node, reduce: str) -> Node:
    return ops.scatter(x, indices, ops.as_dtype(values, x.dtype), dim=axis(dim, x.type.rank), reduce=reduce)


@converts("aten.scatter.src")
def scatter(x: Node, dim: int, indices: Node, values: Node) -> Node:
    return _scattered(x, dim, indices, values, "none")


@converts("aten.scatter.value")
def scatter_value(x: Node, dim: int, indices: Node, value: float) -> Node:
    return _scattered(x, dim, indices, expand(as_node(value, x.dtype), indices.shape), "none")


@converts("aten.scatter_add.default")
def scatter_add(x: Node, dim: int, indices: Node, values: Node) -> Node:
    return _scattered(x, dim, indices, values, "add")


@converts("aten.scatter_reduce.two")
def scatter_reduce(x: Node, dim: int, indices: Node, values: Node, reduce: str, include_self: bool = True) -> Node:
    names = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduce not in names or not include_self:
        raise Refusal(f"scatter_reduce with {reduce}, include_self={include_self}")
    return _scattered(x, dim, indices, values, names[reduce])


def _spread(x: Node, dim: int, indices: Node, values: Node) -> tuple[int, Node]:
    """A vector of indices along `dim`, repeated for every element of `values`."""
    d = axis(dim, x.type.rank)
    along = view(indices, tuple(indices.type.numel if k == d else 1 for k in range(x.type.rank)))
    return d, expand(along, values.shape)


@converts("aten.index_add.default")
def index_add(x: Node, dim: int, indices: Node, values: Node, alpha: float = 1) -> Node:
    d, places = _spread(x, dim, indices, values)
    return _scattered(x, d, places, values if alpha == 1 else ops.mul(values, alpha), "add")


@converts("aten.index_copy.default")
def index_copy(x: Node, dim: int, indices: Node, values: Node) -> Node:
    d, places = _spread(x, dim, indices, values)
    return _scattered(x, d, places, values, "none")


@converts("aten.index_fill.int_Scalar")
def index_fill(x: Node, dim: int, indices: Node, value: float) -> Node:
    d = axis(dim, x.type.rank)
    hit = ops.eq(ops.unsqueeze(ops.iota(size=x.shape[d]), 1), ops.as_dtype(indices, ops.iota(size=1).dtype))
    chosen = view(ops.any_(hit, dims=(1,)), tuple(x.shape[d] if k == d else 1 for k in range(x.type.rank)))
    return ops.where(chosen, as_node(value, x.dtype), x)


@converts("aten.take_along_dim.default")
def take_along_dim(x: Node, indices: Node, dim: int | None = None) -> Node:
    if dim is None:
        return take(x, indices)
    d = axis(dim, x.type.rank)
    rest = broadcast_shapes(*((*v.shape[:d], 1, *v.shape[d + 1 :]) for v in (x, indices)))
    shapes = [(*rest[:d], v.shape[d], *rest[d + 1 :]) for v in (x, indices)]
    return ops.gather(expand(x, shapes[0]), expand(indices, shapes[1]), dim=d)
