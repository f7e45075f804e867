"""Look-ups and indexing by tensors."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.conversions.views import canonicalize_dim, expand, select, view
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import boolean, broadcast_shapes, i64, u8


@converts("aten.embedding.default")
def embedding(
    weight: Node, indices: Node, padding_idx: int = -1, scale_by_freq: bool = False, sparse: bool = False
) -> Node:
    return ops.take(weight, indices, dim=0)


@converts("aten.index_select.default")
def index_select(x: Node, dim: int, indices: Node) -> Node:
    picked = ops.take(
        x if x.type.rank else view(x, (1,)),
        view(indices, (indices.type.numel,)),
        dim=canonicalize_dim(dim, x.type.rank),
    )
    return picked if x.type.rank else view(picked, ())


@converts("aten.gather.default")
def gather(x: Node, dim: int, indices: Node, sparse_grad: bool = False) -> Node:
    if not x.type.rank:
        x, flat = view(x, (1,)), view(indices, (indices.type.numel,))
        return view(ops.gather(x, flat, dim=0), indices.shape)
    return ops.gather(x, indices, dim=canonicalize_dim(dim, x.type.rank))


@converts("aten.take.default")
def take(x: Node, indices: Node) -> Node:
    return ops.index(view(x, (x.type.numel,)), indices, dims=(0,))


def is_mask(i: Node) -> bool:
    """Whether an index tells by its elements which places are meant, not by numbers."""
    return i.dtype in (boolean, u8)


def index_vectors(indices: Sequence[Node | None], nonzero_count: Dim | None) -> tuple[list[Node], tuple[int, ...]]:
    """The given index tensors and their dimensions; a mask, which holds in `count` places, becomes one for each of its own."""
    found: list[tuple[int, Node]] = []
    dim = 0
    for i in indices:
        places = () if i is None else nonzero_indices(i, nonzero_count) if is_mask(i) else (i,)
        found += [(dim + k, p) for k, p in enumerate(places)]
        dim += len(places) or 1
    return [i for _, i in found], tuple(d for d, _ in found)


def nonzero_indices(mask: Node, count: Dim | None) -> tuple[Node, ...]:
    """The places where a mask holds, as one vector for each of its dimensions."""
    if count is None:
        raise ConversionError("a mask holds in a number of places that depends on data; use torch.where")
    shape = (count, mask.type.rank)
    table = ops.eager(mask, overload="aten.nonzero.default", args=("%0",), dtypes=(i64,), shapes=(shape,))
    return tuple(select(table, 1, d) for d in range(mask.type.rank))


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor", needs_shape=True)
def index(x: Node, indices: Sequence[Node | None], shape: Sequence[Dim] = ()) -> Node:
    """Where indices stand side by side, their common dimensions take the place of the first; else they come first of all."""
    given = [d for d, i in enumerate(indices) if i is not None]
    if not given:
        return x
    first = given[0] if given == list(range(given[0], given[-1] + 1)) else 0
    ranks = [i.type.rank for i in indices if i is not None and not is_mask(i)]
    places, dims = index_vectors(indices, shape[first + max([1, *ranks]) - 1] if shape else None)
    return ops.index(x, *places, dims=dims)


@converts("aten.masked_select.default", needs_shape=True)
def masked_select(x: Node, mask: Node, shape: Sequence[Dim]) -> Node:
    both = broadcast_shapes(x.shape, mask.shape)
    return index(expand(x, both), (expand(mask, both),), shape)


@converts("aten.take_along_dim.default")
def take_along_dim(x: Node, indices: Node, dim: int | None = None) -> Node:
    if dim is None:
        return take(x, indices)
    d = canonicalize_dim(dim, x.type.rank)
    rest = broadcast_shapes(*((*v.shape[:d], 1, *v.shape[d + 1 :]) for v in (x, indices)))
    shapes = [(*rest[:d], v.shape[d], *rest[d + 1 :]) for v in (x, indices)]
    return ops.gather(expand(x, shapes[0]), expand(indices, shapes[1]), dim=d)
