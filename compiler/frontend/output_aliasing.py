"""Results that alias arguments: AOTAutograd takes the layout of such a view from the tensor that a backend returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compiler.frontend.calling_convention import ScalarOutput
from compiler.frontend.promotion import as_node
from compiler.frontend.registry import ConversionError
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IndexMap, is_view
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.types import i64


@dataclass(frozen=True)
class InputView:
    """Result that is a view of argument `position`; strides and offset are in elements.

    AOTAutograd returns a view with these strides and this offset if the sizes were symbolic in tracing.  An offset that data decides
    is a result of the graph, i64[].
    """

    position: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim | ScalarOutput

    @property
    def dims(self) -> tuple[Dim, ...]:
        offset = () if isinstance(self.offset, ScalarOutput) else (self.offset,)
        return *self.shape, *self.strides, *offset


def input_views(
    placeholders: Sequence[torch.fx.Node],
    values: Mapping[torch.fx.Node, Any],
    outputs: Sequence[torch.fx.Node],
    dim: Callable[[int | torch.SymInt], Dim],
    store: Callable[[Node], ScalarOutput],
) -> dict[int, InputView]:
    """Return the results that alias arguments and have a symbolic layout, by their number.

    `values` maps FX nodes to graph nodes, `dim` converts a symbolic size, and `store` makes a node an output of the graph.
    """
    stored = {_storage_id(n.meta["val"]): (k, n) for k, n in enumerate(placeholders) if _is_strided(n.meta["val"])}
    views = {}
    for k, n in enumerate(outputs):
        v: Any = n.meta.get("val") if isinstance(n, torch.fx.Node) else None
        if not _is_strided(v) or _storage_id(v) not in stored:
            continue
        position, argument = stored[_storage_id(v)]
        if _has_symbolic_layout(v, argument.meta["val"]):
            shape, strides = (tuple(map(dim, sizes)) for sizes in (v.shape, v.stride()))
            try:
                offset: Dim | Node = dim(v.storage_offset())
            except ConversionError:  # data-dependent, with an unbacked symbol of its own
                offset = _view_offset(n, values, argument, dim)
            views[k] = InputView(position, shape, strides, store(offset) if isinstance(offset, Node) else offset)
    return views


def is_alias(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Return True if the values of two FX nodes share memory; a clone is another tensor though it has the same elements."""
    first, second = a.meta["val"], b.meta["val"]
    return not (_is_strided(first) and _is_strided(second)) or _storage_id(first) == _storage_id(second)


def _is_strided(v: Any) -> bool:
    return isinstance(v, torch.Tensor) and v.layout == torch.strided


def _has_symbolic_layout(*tensors: torch.Tensor) -> bool:
    """Return True if a size, stride or offset was symbolic in tracing, even if it has been specialized since."""
    return any(isinstance(d, torch.SymInt) for t in tensors for d in (*t.shape, *t.stride(), t.storage_offset()))


def _storage_id(v: torch.Tensor) -> int:
    return int(v.untyped_storage()._cdata)


def _view_offset(
    view: torch.fx.Node, values: Mapping[torch.fx.Node, Any], argument: torch.fx.Node, dim: Callable[[int | torch.SymInt], Dim]
) -> Dim | Node:  # fmt: skip
    """Return the offset of `view` in the storage of `argument` in elements, composed from the operations between them.

    It is a node i64[] if one of them looks positions up.
    """
    n: Node = values[view]
    index: tuple[Dim, ...] = (0,) * n.type.rank
    stored: torch.Tensor = argument.meta["val"]
    strides, offset = tuple(map(dim, stored.stride())), dim(stored.storage_offset())
    while n is not values.get(argument):
        if not isinstance(n.structure, IndexMap) or not is_view(n.structure, n):
            return _looked_up_offset(values[view], values[argument], strides, offset)
        (read,) = n.structure.reads(n, index)
        n, index = n.operands[read.operand], read.position
    return offset + sum((product((i, stride)) for i, stride in zip(index, strides, strict=True)), start=0)


def _looked_up_offset(view: Node, argument: Node, strides: Sequence[Dim], offset: Dim) -> Node:
    """Return the offset of the first element of `view`: what `view` makes of the offsets of all elements; 0 if it is empty."""
    offsets = as_node(offset, i64)
    for d, stride in enumerate(strides):
        offsets = ops.add(offsets, ops.mul(ops.iota_along(argument.shape, d), as_node(stride, i64)))

    def moved(n: Node) -> Node:
        if n is argument:
            return offsets
        attrs = {**n.attrs, "dtypes": (i64,) * len(n.attrs["dtypes"])} if n.op is ops.eager else n.attrs
        return n.op(moved(n.operands[0]), *n.operands[1:], **attrs)

    first = moved(view)
    rank = first.type.rank
    first = ops.pad(first, before=[0] * rank, after=[1] * rank)
    for d in range(rank):
        first = ops.slice_(first, dim=d, size=1)
    return ops.reshape(first, shape=())
