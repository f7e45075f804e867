"""Packing of constants into the layout of their buffer's type, once per constant and type."""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from compiler.errors import VerifyError
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData, LazyConstant
from compiler.ir.types import Layout, PhysicalDim, TensorType
from compiler.runtime.memory import ALIGNMENT
from compiler.runtime.prefaulted_arena import PrefaultedArena

_PACKED: WeakKeyDictionary[ConstantData, dict[TensorType, Array]] = WeakKeyDictionary()
"""Packed copies of each constant by type, shared by all programs: one graph may be compiled for many sizes."""


def pack_once(constant: ConstantData | Array, type: TensorType, arena: PrefaultedArena | None = None) -> Array:
    """Pack a constant into the layout of `type`, in `arena` while that has room; graph constants are packed once."""
    if not isinstance(constant, ConstantData):
        return pack_aligned(constant, type, arena)
    cached = _PACKED.setdefault(constant, {})
    if type not in cached:
        axis = _block_axis(type.layout, type.rank - 1) if type.layout else None
        if isinstance(constant, LazyConstant) and type.layout and axis is not None:
            cached[type] = pack_blockwise(constant, type.layout, axis, arena)
        else:
            cached[type] = pack_aligned(constant.array, type, arena)
    return cached[type]


def keep_packed(constant: ConstantData, type: TensorType, packed: Array) -> None:
    """Let `pack_once` return `packed` for this constant and type."""
    _PACKED.setdefault(constant, {})[type] = packed


def unpack(packed: Array, type: TensorType) -> Array:
    """Return the dense array of `type`'s shape whose packed form is `packed`; inverse of `pack`."""
    if not type.layout:
        return packed.reshape(type.static_shape())
    padded, order = list[int](), list[int]()
    for d, extent in enumerate(type.static_shape()):
        block = _block_size(type.layout, d)
        padded.append(-(-extent // (block or 1)) * (block or 1))
        order += [type.layout.physical_dims.index(g) for g in _physical_dims(d, block)]
    return packed.transpose(order).reshape(padded)[tuple(map(slice, type.static_shape()))]


def aligned_copy(array: Array, arena: PrefaultedArena | None = None) -> Array:
    """Return a copy that starts on a cache line, in memory of `arena` if that has enough."""
    copy = aligned_empty(array.shape, array.dtype, arena)
    copy[...] = array
    return copy


def _block_axis(layout: Layout, dim: int) -> int | None:
    """Return the axis of packed arrays that numbers the blocks of dimension `dim`, or None if it has no blocks."""
    axes = [k for k, d in enumerate(layout.physical_dims) if d.dim == dim and d.block_size and not d.is_inner]
    return axes[0] if axes else None


def pack_blockwise(constant: LazyConstant, layout: Layout, axis: int, arena: PrefaultedArena | None = None) -> Array:
    """Pack a lazy constant whose last dimension lies in blocks, numbered by `axis`; each is packed while still in cache."""
    block, size = layout.physical_dims[axis].block_size, constant.shape[-1]
    blocks = (pack(constant.compute_slice(k, min(k + block, size)), layout) for k in range(0, size, block))
    first = next(blocks)
    shape = (*first.shape[:axis], -(-size // block), *first.shape[axis + 1 :])
    packed = aligned_empty(shape, first.dtype, arena)
    by_block = np.moveaxis(packed, axis, 0)
    for k, values in enumerate(itertools.chain([first], blocks)):
        by_block[k] = np.moveaxis(values, axis, 0)[0]
    return packed


def pack_aligned(array: Array, type: TensorType, arena: PrefaultedArena | None = None) -> Array:
    """Return `array` (dense, of `type`'s shape) aligned and in the layout of `type`; a view if it already is."""
    dense = array.reshape(type.static_shape())
    physical = pack(dense, type.layout) if type.layout else dense
    if physical.flags.c_contiguous and physical.ctypes.data % ALIGNMENT == 0:
        return physical
    return aligned_copy(physical, arena)


def pack(array: Array, layout: Layout) -> Array:
    """Return a view of `array`, or of its zero-padded copy, with one axis for each physical dimension of `layout`."""
    blocks = [_block_size(layout, d) for d in range(array.ndim)]
    margins = [(0, -extent % (block or 1)) for extent, block in zip(array.shape, blocks, strict=True)]
    padded = np.pad(array, margins) if any(after for _, after in margins) else array
    shape: list[int] = []
    axis: dict[PhysicalDim, int] = {}
    for d, (extent, block) in enumerate(zip(padded.shape, blocks, strict=True)):
        axis.update({g: len(shape) + k for k, g in enumerate(_physical_dims(d, block))})
        shape += [extent // block, block] if block else [extent]
    return padded.reshape(shape).transpose([axis[g] for g in layout.physical_dims])


def _physical_dims(dim: int, block: int) -> list[PhysicalDim]:
    """Return the physical dimensions of `dim`: itself if `block` is 0, else block number and index in the block."""
    return [PhysicalDim(dim, block), PhysicalDim(dim, block, is_inner=True)] if block else [PhysicalDim(dim)]


def _block_size(layout: Layout, dim: int) -> int:
    """Return the block size of dimension `dim` in `layout`, 0 if it is not split; VerifyError for other splits."""
    physical = {g for g in layout.physical_dims if g.dim == dim}
    block = max((g.block_size for g in physical), default=0)
    if physical != set(_physical_dims(dim, block)):
        raise VerifyError(
            f"layout {layout}: dimension {dim} must appear unsplit, or as one outer (block) and one inner dimension"
        )
    return block


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any], arena: PrefaultedArena | None = None) -> Array:
    """Return an uninitialised array that starts on a cache line, in memory of `arena` if that has enough."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    prefaulted = arena.allocate(size) if arena else None
    if prefaulted is not None:
        return prefaulted.view(dtype).reshape(shape)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
