"""Strided accesses that are done with whole vectors and shuffles; passes and code generation use the same limits."""

from compiler.ir.symbolic.index_expr import Dim

MIN_TRANSPOSE_BLOCK = 4
"""Fewest contiguous elements for which a block is transposed in registers; chosen empirically."""


def is_deinterleaved(stride: int, lanes: int) -> bool:
    """Return True if `stride` elements apart means shuffling whole vectors, also backwards; for larger strides gathers are faster."""
    return stride not in (0, 1) and abs(stride) <= lanes // 2


def is_spread(stride: int, lanes: int) -> bool:
    """Return True if elements `stride` apart are stored by as many masked vectors, where the machine has mask registers."""
    return 2 <= stride <= lanes // 2


def is_interleaved(columns: Dim, row_stride: Dim, lanes: int) -> bool:
    """Return True if the rows of a stored block are short and close together: vectors of several rows are stored.

    What lies between the rows is less than a row, and is masked.
    """
    if not isinstance(columns, int) or not isinstance(row_stride, int):
        return False
    return 2 <= columns <= row_stride < 2 * columns and row_stride <= lanes // 2
