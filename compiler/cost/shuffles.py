"""Elements that lie apart in memory and yet come in whole vectors: passes count on it where code generation does it."""

MIN_TRANSPOSE_BLOCK = 4
"""The fewest elements side by side for which blocks are turned in registers."""


def is_deinterleaved(stride: int, lanes: int) -> bool:
    """Whether every `step`-th element is picked from vectors that hold two of them or more; beyond, gathers take less time."""
    return 2 <= stride <= lanes // 2
