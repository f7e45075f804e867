"""Width of indices: 32 bits, or 64 where a buffer may have more elements than those count."""

from __future__ import annotations

from compiler.ir.symbolic.index_expr import interval
from compiler.ir.tile.kernel import Kernel

INT32_INDEX_LIMIT = 1 << 31
"""Buffers of at least this many elements need 64-bit indices."""


def has_long_indices(kernel: Kernel) -> bool:
    """Return True if a parameter may need 64-bit indices."""
    counts = (interval(p.type.numel, {}) for p in kernel.params)
    return any(bounds is None or bounds[1] >= INT32_INDEX_LIMIT for bounds in counts)
