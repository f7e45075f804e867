"""Order of a tensor's dimensions in memory, as PyTorch traced it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.frontend.registry import ConversionError


def memory_order(t: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a dense (fake) tensor from the outermost in memory to the innermost.

    Raises ConversionError if the tensor does not fill its storage without gaps.
    """
    order, strides = tuple(range(t.ndim)), t.stride()
    if all(isinstance(s, int) for s in strides):
        order = tuple(sorted(order, key=lambda d: (-strides[d], t.shape[d] != 1)))
    if t.storage_offset() != 0 or not t.permute(order).is_contiguous():
        raise ConversionError("as_strided on a tensor that is not dense; use reshape, permute, expand or slicing")
    return order


def visiting_order(t: torch.Tensor) -> tuple[int, ...]:
    """Return the order, outermost dimension first, in which eager PyTorch visits a (fake) tensor and those made like it.

    Dynamic sizes count as those of the example; with data-dependent ones, the order is that of the indices.
    """
    rows, shape, strides = tuple(range(t.ndim)), _hints(t.shape), _hints(t.stride())
    if t.layout != torch.strided or shape is None or strides is None:
        return rows
    like = torch.empty_like(torch.empty_strided(shape, strides, device="meta"))
    dense = like.stride()
    return rows if like.is_contiguous() else tuple(sorted(rows, key=lambda d: -dense[d]))


def _hints(sizes: Sequence[int | torch.SymInt]) -> list[int] | None:
    """Return the sizes of the example; None where one is data-dependent."""
    known = [s.node.hint if isinstance(s, torch.SymInt) else s for s in sizes]
    return None if None in known else known
