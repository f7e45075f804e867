"""Boxes of tensors: loads whose tile is a box that a GPU can copy by a tensor descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.symbolic.index_expr import Dim, mod, product, substitute, var, variables
from compiler.ir.tile.kernel import Range
from compiler.ir.types import TensorType

ALIGNMENT = 16
"""Bytes that addresses of boxes, and strides between their rows, are multiples of (CUDA driver API, cuTensorMapEncodeTiled)."""

MAX_EXTENT, MAX_RANK = 256, 5
"""Most elements of a box along a dimension, and most dimensions (the same source)."""


@dataclass(frozen=True)
class TensorBox:
    """Box of a tensor that a load reads in one tile of the loops around it.

    All fields have an entry for each dimension, in the order of memory: sizes and strides in elements of the tensor, `extents` of the
    box, the tiled loop along each ("" without one), and the part of its first index that no tiled loop contributes.
    """

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    extents: tuple[int, ...]
    loops: tuple[str, ...]
    offsets: tuple[Dim, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The tiled loops, in the order of memory."""
        return tuple(v for v in self.loops if v)


def tensor_box(index: tuple[Dim, ...], type_: TensorType, loops: Sequence[Range]) -> TensorBox | None:
    """Return the box that a load of `index` reads inside `loops`; None if it reads no box, or one that is not aligned.

    Elements that a partial tile excludes must lie outside the tensor, where a descriptor reads zeros.
    """
    layout, tiled = type_.layout, {r.var: r for r in loops if r.tile > 1}
    known = {r.var for r in loops}
    if not 2 <= type_.rank <= MAX_RANK or (layout and not layout.is_permutation):
        return None
    order = [d.dim for d in layout.physical_dims] if layout else range(type_.rank)
    shape = tuple(type_.shape[d] for d in order)
    strides = tuple(product(shape[k + 1 :]) for k in range(type_.rank))
    sides = [box_side(index[d], type_.shape[d], tiled) for d in order]
    along = [v for v, _ in filter(None, sides) if v]
    if None in sides or len(set(along)) < len(along) or not {v for d in index for v in variables(d)} <= known:
        return None
    names, offsets = zip(*filter(None, sides), strict=True)
    box = TensorBox(shape, strides, tuple(tiled[v].tile if v else 1 for v in names), names, offsets)
    return box if is_aligned(box, type_.dtype.bytes, tiled) else None


def box_side(d: Dim, size: Dim, tiled: dict[str, Range]) -> tuple[str, Dim] | None:
    """Return the tiled loop of an index ("" for none) and the rest of the index.

    None if a tile is no interval of the tensor.
    """
    names = variables(d) & tiled.keys()
    if not names:
        return "", d
    name, *others = names
    offset, r = d - var(name), tiled[name]
    is_partial = not isinstance(r.extent, int) or r.extent % r.tile != 0
    if others or name in variables(offset) or (is_partial and r.hi + offset != size):
        return None
    return name, offset


def is_aligned(box: TensorBox, element_bytes: int, tiled: dict[str, Range]) -> bool:
    """Return True if the rows of a box are contiguous, and they and their distances are multiples of `ALIGNMENT`."""
    last = tiled.get(box.loops[-1])
    if last is None or max(box.extents) > MAX_EXTENT:
        return False
    first = substitute(box.offsets[-1] + var(last.var), {last.var: last.lo})
    lengths = (*box.strides[:-1], last.tile, first)
    return not any(mod(n * element_bytes, ALIGNMENT) for n in lengths)
