"""Strided accesses that are done with whole vectors and shuffles; passes and code generation use the same limits."""

from compiler.ir.symbolic.index_expr import Dim

MIN_TRANSPOSE_BLOCK = 4
"""Fewest contiguous elements for which a block is transposed in registers; chosen empirically."""


def is_deinterleaved(stride: int, lanes: int) -> bool:
    """Return True if `stride` elements apart means shuffling whole vectors; for larger strides gathers are faster."""
    return 2 <= stride <= lanes // 2


def is_interleaved(columns: Dim, row_stride: Dim, lanes: int) -> bool:
    """Return True if the rows of a stored block follow each other without gaps and are short: whole vectors of several rows are stored."""
    return isinstance(columns, int) and columns == row_stride and 2 <= columns <= lanes // 2
