"""Constants as kernels read them: stored once, in the layout of their buffer's type."""

from __future__ import annotations

from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from compiler.errors import VerifyError
from compiler.ir.graph.constant import ConstantData, LazyConstant
from compiler.ir.types import Layout, PhysicalDim, TensorType
from compiler.runtime.memory import ALIGNMENT
from compiler.runtime.prefaulted_arena import PrefaultedArena

Array: TypeAlias = np.ndarray[Any, Any]


_PACKED: WeakKeyDictionary[ConstantData, dict[TensorType, Array]] = WeakKeyDictionary()
"""What was made of each constant, shared by every program that holds it: one graph may be compiled for many sizes."""


def pack_once(constant: ConstantData | Array, type: TensorType, arena: PrefaultedArena | None = None) -> Array:
    """`stored`, done once for each constant of a graph and type; in memory of `reserve` while there is some."""
    if not isinstance(constant, ConstantData):
        return pack_aligned(constant, type, arena)
    known = _PACKED.setdefault(constant, {})
    if type not in known:
        if isinstance(constant, LazyConstant) and type.layout and _is_outer_blocked(type.layout, type.rank - 1):
            known[type] = pack_blockwise(constant, type.layout, arena)
        else:
            known[type] = pack_aligned(constant.array, type, arena)
    return known[type]


def _is_outer_blocked(layout: Layout, dim: int) -> bool:
    """Whether memory holds one block of dimension `dim` after the other."""
    return layout.physical_dims[0].dim == dim and layout.physical_dims[0].block_size > 0


def pack_blockwise(constant: LazyConstant, layout: Layout, arena: PrefaultedArena | None = None) -> Array:
    """`stored` in a layout that begins with blocks of the last dimension: each is packed while the caches still hold it."""
    block, size = layout.physical_dims[0].block_size, constant.shape[-1]
    parts = (pack(constant.compute_slice(k, min(k + block, size)), layout) for k in range(0, size, block))
    first = next(parts)
    packed = aligned_empty((-(-size // block), *first.shape[1:]), first.dtype, arena)
    packed[:1] = first
    for k, part in enumerate(parts, 1):
        packed[k : k + 1] = part
    return packed


def pack_aligned(array: Array, type: TensorType, arena: PrefaultedArena | None = None) -> Array:
    """`array` (dense, of `type`'s shape) in the layout of `type`, aligned; the very same memory where it is so already."""
    dense = array.reshape(type.static_shape())
    physical = pack(dense, type.layout) if type.layout else dense
    if physical.flags.c_contiguous and physical.ctypes.data % ALIGNMENT == 0:
        return physical
    copy = aligned_empty(physical.shape, physical.dtype, arena)
    copy[...] = physical
    return copy


def pack(array: Array, layout: Layout) -> Array:
    """A view of `array` (or of its zero-padded copy) with one axis for each digit of `layout`."""
    blocks = [_block_size(layout, d) for d in range(array.ndim)]
    margins = [(0, -extent % (block or 1)) for extent, block in zip(array.shape, blocks, strict=True)]
    padded = np.pad(array, margins) if any(after for _, after in margins) else array
    shape: list[int] = []
    axis: dict[PhysicalDim, int] = {}
    for d, (extent, block) in enumerate(zip(padded.shape, blocks, strict=True)):
        digits = [PhysicalDim(d)] if not block else [PhysicalDim(d, block), PhysicalDim(d, block, is_inner=True)]
        axis.update({digit: len(shape) + k for k, digit in enumerate(digits)})
        shape += [extent] if not block else [extent // block, block]
    return padded.reshape(shape).transpose([axis[digit] for digit in layout.physical_dims])


def _block_size(layout: Layout, dim: int) -> int:
    """The block size that `layout` splits dimension `dim` by, 0 where it keeps it whole; VerifyError for any other use."""
    digits = {g for g in layout.physical_dims if g.dim == dim}
    block = max((g.block_size for g in digits), default=0)
    if digits != (
        {PhysicalDim(dim)} if not block else {PhysicalDim(dim, block), PhysicalDim(dim, block, is_inner=True)}
    ):
        raise VerifyError(
            f"layout {layout}: dimension {dim} must appear whole, or as one block number and one place in it"
        )
    return block


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any], arena: PrefaultedArena | None = None) -> Array:
    """An uninitialised array that starts on a cache line; in memory of `reserve` while there is some."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    kept = arena.allocate(size) if arena else None
    if kept is not None:
        return kept.view(dtype).reshape(shape)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
