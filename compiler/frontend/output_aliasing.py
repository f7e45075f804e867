"""Results that are views of arguments, whose place in memory AOTAutograd takes from what a backend returns."""

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
    """Result that is a view of argument `position`.

    Where PyTorch has traced with open sizes, AOTAutograd takes its strides and its offset, in elements, for those of what it returns
    to the user.
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
    """The results that are views of arguments, by their number; `values` are the nodes of a graph and `dim` gives a size."""
    stored = {_storage_id(n.meta["val"]): (k, n) for k, n in enumerate(placeholders) if _is_strided(n.meta["val"])}
    found = {}
    for k, n in enumerate(outputs):
        v: Any = n.meta.get("val") if isinstance(n, torch.fx.Node) else None
        if (
            _is_strided(v)
            and _storage_id(v) in stored
            and _has_symbolic_layout(v, stored[_storage_id(v)][1].meta["val"])
        ):
            position, argument = stored[_storage_id(v)]
            shape, strides = (tuple(map(dim, sizes)) for sizes in (v.shape, v.stride()))
            try:
                offset = dim(v.storage_offset())
            except ConversionError:  # data decides it, and PyTorch has given it a name of its own
                offset = _view_offset(n, values, argument, dim)
            found[k] = InputView(position, shape, strides, offset)
    return found


def _is_strided(v: Any) -> bool:
    return isinstance(v, torch.Tensor) and v.layout == torch.strided


def _has_symbolic_layout(*tensors: torch.Tensor) -> bool:
    """Whether PyTorch has left something of a tensor open, even if it has come to be one number since."""
    return any(isinstance(d, torch.SymInt) for t in tensors for d in (*t.shape, *t.stride(), t.storage_offset()))


def _storage_id(v: torch.Tensor) -> int:
    return int(v.untyped_storage()._cdata)


def _view_offset(
    view: torch.fx.Node,
    values: Mapping[torch.fx.Node, Any],
    argument: torch.fx.Node,
    dim: Callable[[int | torch.SymInt], Dim],
) -> Dim:
    """Where the first element of `view` lies in the memory of `argument`; UnsupportedOpError where no view leads there."""
    n: Node = values[view]
    place: tuple[Dim, ...] = (0,) * n.type.rank
    while n is not values.get(argument):
        if not isinstance(n.structure, IndexMap) or not is_view(n.structure, n):
            reason = "shares memory with an argument and begins where data says; return a copy of it"
            raise UnsupportedOpError([UnsupportedOp(str(view.target), reason, source_of(view))])
        (piece,) = n.structure.reads(n, place)
        n, place = n.operands[piece.operand], piece.position
    stored: torch.Tensor = argument.meta["val"]
    offset = dim(stored.storage_offset())
    for at, stride in zip(place, stored.stride(), strict=True):
        offset = offset + product((at, dim(stride)))
    return offset
