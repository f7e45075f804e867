"""Look-ups and indexing by tensors."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.aten.views import axis, expand, view
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


def located(indices: Sequence[Node | None], what: str) -> tuple[list[Node], tuple[int, ...]]:
    """The given index tensors and their dimensions."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype in (boolean, u8) for _, i in given):
        raise Refusal(f"{what} by a mask has a size that depends on data; use torch.where")
    return [i for _, i in given], tuple(d for d, _ in given)


@converts("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(x: Node, indices: Sequence[Node | None]) -> Node:
    given, dims = located(indices, "indexing")
    return ops.index(x, *given, dims=dims) if given else x


@converts("aten.take_along_dim.default")
def take_along_dim(x: Node, indices: Node, dim: int | None = None) -> Node:
    if dim is None:
        return take(x, indices)
    d = axis(dim, x.type.rank)
    rest = broadcast_shapes(*((*v.shape[:d], 1, *v.shape[d + 1 :]) for v in (x, indices)))
    shapes = [(*rest[:d], v.shape[d], *rest[d + 1 :]) for v in (x, indices)]
    return ops.gather(expand(x, shapes[0]), expand(indices, shapes[1]), dim=d)
