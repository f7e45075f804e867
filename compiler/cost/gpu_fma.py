"""Threads that multiply a block without a matrix unit: which results each has, and how they read operands from shared memory.

Triton gives a thread up to 4 x 4 neighbouring results, lines up lanes and then warps along columns, and repeats that over the
block (its blocked layout).  A shared memory of 32 banks serves an access of 16 bytes to a quarter of a warp at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.cost.machine import GPU

VECTOR = 4
"""Elements of 32 bits in an access of 16 bytes, and most neighbouring results of a thread along a side."""

QUARTER = 8
"""Lanes whose accesses of 16 bytes shared memory serves together."""


@dataclass(frozen=True)
class ThreadBlock:
    """Results of a thread, `side` x `side` neighbours each, in `rows` rows and `columns` columns; lanes of a warp along columns."""

    rows: float
    columns: float
    side: int
    lanes: int

    @staticmethod
    def of(rows: int, columns: int, warps: int, gpu: GPU) -> ThreadBlock:
        """Return the results of a thread of a block with `warps`."""
        accumulators = rows * columns / (warps * gpu.warp_threads)
        side = VECTOR if accumulators >= VECTOR**2 else 2 if accumulators >= 4 else 1
        lanes = max(1, min(gpu.warp_threads, columns // side))
        across = max(1, min(warps, columns // (side * lanes)))
        own = max(1.0, columns / (across * lanes))
        return ThreadBlock(max(1.0, accumulators / own), min(own, max(1.0, accumulators)), side, lanes)

    def row_cycles(self, is_transposed: bool) -> float:
        """Return the cycles of a warp for a column of the left operand, of 32 banks each, whatever lanes share.

        A `transposed` operand has its rows as neighbours in shared memory, another one the steps of the sum.
        """
        return self.rows if is_transposed else self.rows * max(1, QUARTER // self.lanes)

    def column_cycles(self, is_transposed: bool) -> float:
        """Return the cycles of a warp for a row of the right operand, the columns of which are neighbours unless it is `transposed`.

        Lanes that read along the sum of different columns, which are a multiple of all banks apart, are served one after another.
        """
        return self.columns * (min(QUARTER, self.lanes) if is_transposed else 1)

    def chain_cycles(self, latency: int) -> float:
        """Return the cycles in which one warp multiplies a step of the sum: it waits for its operands, which are not prefetched."""
        return self.rows * self.columns + latency
