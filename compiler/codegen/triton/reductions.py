"""Reductions in Triton source: what they begin with, how blocks are reduced along an axis, which loops are unrolled."""

from __future__ import annotations

from compiler.codegen.triton.triton_names import dtype_names, reduce_helper
from compiler.ir.graph.structure import IDENTITIES
from compiler.ir.scalar import Const, const
from compiler.ir.tile.kernel import Range, Reduce

MAX_UNROLLED = 8
"""Most iterations of a loop over a window, which is unrolled."""


def is_short(r: Range) -> bool:
    """Return True if a loop has few iterations, over single elements or all in one block."""
    return r.lo == 0 and isinstance(r.extent, int) and r.extent <= MAX_UNROLLED and r.tile in (1, r.extent)


def reduce_identity(s: Reduce) -> Const:
    """Return the identity element of a reduction."""
    return const(IDENTITIES[s.op](s.value.dtype), s.value.dtype)


def reduce_axis(s: Reduce, text: str, axis: int) -> str:
    """Return the reduction of block `text` along one of its axes."""
    dtype, helper = s.value.dtype, reduce_helper(s.op, s.value.dtype)
    if helper:
        return f"tl.reduce({text}, {axis}, {helper})"
    return f"tl.sum({text}, axis={axis}{f', dtype={dtype_names(dtype)[0]}' if dtype.bits < 32 else ''})"
