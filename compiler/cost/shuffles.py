"""Strided accesses that are done with whole vectors and shuffles; passes and code generation use the same limits."""

MIN_TRANSPOSE_BLOCK = 4
"""Fewest contiguous elements for which a block is transposed in registers; chosen empirically."""


def is_deinterleaved(stride: int, lanes: int) -> bool:
    """Return True if `stride` elements apart means shuffling whole vectors; for larger strides gathers are faster."""
    return 2 <= stride <= lanes // 2
