"""Descriptions of machines for the cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace

CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""


@dataclass(frozen=True)
class Machine:
    """One core's vector unit and the caches around it; the defaults describe a Zen 5 server core.

    Peak rates are measured by `python -m benchmarks peak`; the others are chosen so that tiles rank as measured.
    """

    vector_bits: int = 512
    registers: int = 32
    """Vector registers."""
    fma_per_cycle: int = 2
    """Vector multiply-adds that begin in a cycle."""
    fma_latency: int = 4
    """Cycles until the result of a multiply-add can be used."""
    loads_per_cycle: int = 2
    """Vector loads that begin in a cycle."""
    loads_per_broadcast: float = 1.15
    """Cost of a broadcast load, in vector loads."""
    instructions_per_cycle: int = 6
    """Instructions of any kind that begin in a cycle, where two threads share a core."""
    has_embedded_broadcast: bool = True
    """True if multiply-adds take a scalar from memory themselves."""
    l2_bytes_per_cycle: int = 32
    """Bytes that move from the second-level cache in a cycle."""
    l3_bytes_per_cycle: int = 10
    """Bytes that move from the last cache, or from memory, in a cycle."""
    l1_ways: int = 12
    """Lines in a set of the first-level cache."""
    l1: int = 48 << 10
    """Bytes of the first-level data cache of a core."""
    l2: int = 1 << 20
    """Bytes of the second-level cache of a core."""
    l3: int = 32 << 20
    """Bytes of the last cache, which cores share."""
    threads: int = 2
    """Threads that run at once."""

    def lanes(self, bits: int) -> int:
        """Return the number of elements of `bits` bits in one register."""
        return max(1, self.vector_bits // bits)


AVX512 = Machine()
"""Measured on Zen 5; where broadcasts limit, 20 or 28 rows of one vector reach 80 to 85 % of the peak."""

AVX2 = Machine(
    vector_bits=256, registers=16, instructions_per_cycle=4, has_embedded_broadcast=False, l2_bytes_per_cycle=16
)
SSE = replace(AVX2, vector_bits=128)
NEON = Machine(vector_bits=128, registers=32, instructions_per_cycle=4)

ZEN4 = replace(AVX512, fma_per_cycle=1, loads_per_cycle=1, loads_per_broadcast=0.5)
"""Vectors pass units of half their width in two halves; a broadcast is one load of a half.  Measured on Zen 4."""

MACHINES = (AVX512, AVX2, SSE, NEON)
"""One machine for each width and number of vector registers."""

MACHINE_BY_CPU = {"znver4": ZEN4}
"""Machine by LLVM's name of a CPU whose vector width alone is misleading."""
