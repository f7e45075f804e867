"""Results that alias arguments: AOTAutograd takes the layout of such a view from the tensor that a backend returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from compiler.errors import UnsupportedOp, UnsupportedOpError
from compiler.frontend.registry import ConversionError
from compiler.frontend.source_location import source_of
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IndexMap, is_view
from compiler.ir.symbolic.index_expr import Dim, product


@dataclass(frozen=True)
class InputView:
    """Result that is a view of argument `position`; strides and offset are in elements.

    AOTAutograd returns a view with these strides and this offset if the sizes were symbolic in tracing.
    """

    position: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim

    @property
    def dims(self) -> tuple[Dim, ...]:
        return *self.shape, *self.strides, self.offset


def input_views(
    placeholders: Sequence[torch.fx.Node],
    values: Mapping[torch.fx.Node, Any],
    outputs: Sequence[torch.fx.Node],
    dim: Callable[[int | torch.SymInt], Dim],
) -> dict[int, InputView]:
    """Return the results that alias arguments and have a symbolic layout, by their number.

    `values` maps FX nodes to graph nodes, `dim` converts a symbolic size.
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
                offset = dim(v.storage_offset())
            except ConversionError:  # data-dependent, with an unbacked symbol of its own
                offset = _view_offset(n, values, argument, dim)
            views[k] = InputView(position, shape, strides, offset)
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
) -> Dim:  # fmt: skip
    """Return the offset of `view` in the storage of `argument` in elements, composed from the views between them.

    Raises UnsupportedOpError if an operation between them is not a view.
    """
    n: Node = values[view]
    index: tuple[Dim, ...] = (0,) * n.type.rank
    while n is not values.get(argument):
        if not isinstance(n.structure, IndexMap) or not is_view(n.structure, n):
            reason = "aliases an argument at a data-dependent offset; return a copy"
            raise UnsupportedOpError([UnsupportedOp(str(view.target), reason, source_of(view))])
        (read,) = n.structure.reads(n, index)
        n, index = n.operands[read.operand], read.position
    stored: torch.Tensor = argument.meta["val"]
    offset = dim(stored.storage_offset())
    for i, stride in zip(index, stored.stride(), strict=True):
        offset = offset + product((i, dim(stride)))
    return offset
