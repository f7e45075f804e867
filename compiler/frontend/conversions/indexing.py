"""Conversions of gathers and indexing by tensors."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.conversions.views import canonicalize_dim, expand, select, view
from compiler.frontend.opaque_ops import DYNAMIC_SHAPE_REASON
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
    table, flat = x if x.type.rank else view(x, (1,)), view(indices, (indices.type.numel,))
    selected = ops.take(table, flat, dim=canonicalize_dim(dim, x.type.rank))
    return selected if x.type.rank else view(selected, ())


@converts("aten.gather.default")
def gather(x: Node, dim: int, indices: Node, sparse_grad: bool = False) -> Node:
    if not x.type.rank:
        x, flat = view(x, (1,)), view(indices, (indices.type.numel,))
        return view(ops.gather(x, flat, dim=0), indices.shape)
    return ops.gather(x, indices, dim=canonicalize_dim(dim, x.type.rank))


def is_mask(i: Node) -> bool:
    """Return True if an index tensor is a mask (bool or u8), not a tensor of positions."""
    return i.dtype in (boolean, u8)


def index_vectors(indices: Sequence[Node | None], nonzero_count: Dim | None) -> tuple[list[Node], tuple[int, ...]]:
    """Return the index tensors and the dimensions that they index.

    A mask with `nonzero_count` true elements becomes one vector for each of its dimensions.
    """
    vectors: list[Node] = []
    dims: list[int] = []
    dim = 0
    for i in indices:
        positions = () if i is None else nonzero_indices(i, nonzero_count) if is_mask(i) else (i,)
        vectors += positions
        dims += range(dim, dim + len(positions))
        dim += len(positions) or 1
    return vectors, tuple(dims)


def nonzero_indices(mask: Node, count: Dim | None) -> tuple[Node, ...]:
    """Return the positions of the `count` true elements of a mask, one vector i64[count] per dimension."""
    if count is None:
        raise ConversionError("boolean indexing has a data-dependent result size; use torch.where")
    shape = (count, mask.type.rank)
    table = ops.eager(
        mask, overload="aten.nonzero.default", args=("%0",), dtypes=(i64,), shapes=(shape,), reason=DYNAMIC_SHAPE_REASON
    )
    return tuple(select(table, 1, d) for d in range(mask.type.rank))


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor", needs_shape=True)
def index(x: Node, indices: Sequence[Node | None], shape: Sequence[Dim] = ()) -> Node:
    """Index `x` by tensors, with NumPy's rule for the result's dimensions.

    The broadcast dimensions of adjacent index tensors replace the indexed ones; otherwise they come first.
    """
    indexed = [d for d, i in enumerate(indices) if i is not None]
    if not indexed:
        return x
    first = indexed[0] if indexed == list(range(indexed[0], indexed[-1] + 1)) else 0
    ranks = [i.type.rank for i in indices if i is not None and not is_mask(i)]
    vectors, dims = index_vectors(indices, shape[first + max([1, *ranks]) - 1] if shape else None)
    return ops.index(x, *vectors, dims=dims)


@converts("aten.take.default")
def take(x: Node, indices: Node) -> Node:
    return index(view(x, (x.type.numel,)), (indices,))


@converts("aten.masked_select.default", needs_shape=True)
def masked_select(x: Node, mask: Node, shape: Sequence[Dim]) -> Node:
    common = broadcast_shapes(x.shape, mask.shape)
    return index(expand(x, common), (expand(mask, common),), shape)
