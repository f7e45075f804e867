"""Places of rows in local buffers."""

from __future__ import annotations

from compiler.cost.machine import CACHE_LINE_BYTES
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import DType


def row_stride(size: Dim, dtype: DType) -> Dim:
    """Return the elements from one row of `size` elements to the next: whole cache lines, unless a row is short or of dynamic size.

    No register of a row then lies in two lines, and the last one may be stored whole.  The number of lines is odd, so that the
    same element of many rows lies in different sets of a cache.
    """
    line = CACHE_LINE_BYTES // dtype.bytes
    return size if not isinstance(size, int) or size <= line // 2 else (-(-size // line) | 1) * line
