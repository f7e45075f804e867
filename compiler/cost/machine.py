"""What the cost model knows of a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

CACHE_LINE_BYTES = 64
"""Bytes of a cache line."""


@dataclass(frozen=True)
class Machine:
    """One core's vector unit and the caches around it.

    `vector_bits` and `registers` describe the vector registers; `fma_per_cycle` and `loads_per_cycle` count vector
    instructions, `instructions_per_cycle` all that begin, where two threads share a core; a `broadcast` takes as long as so many
    loads, and multiply-adds that `spread` a scalar take it from memory themselves; `fma_latency` is in cycles; caches are in
    bytes, the first two per core, and `l1_ways` is how many lines share a set of the first; what leaves the second moves
    `l3_bytes_per_cycle`, as memory does; `threads` is how many run at once.
    """

    vector_bits: int = 512
    registers: int = 32
    fma_per_cycle: int = 2
    fma_latency: int = 4
    loads_per_cycle: int = 2
    loads_per_broadcast: float = 1.15
    instructions_per_cycle: int = 6
    has_embedded_broadcast: bool = True
    l2_bytes_per_cycle: int = 32
    l3_bytes_per_cycle: int = 10
    l1_ways: int = 12
    l1: int = 48 << 10
    l2: int = 1 << 20
    l3: int = 32 << 20
    threads: int = 2

    def lanes(self, bits: int) -> int:
        """Elements of `bits` in one register."""
        return max(1, self.vector_bits // bits)


AVX512 = Machine()
"""Where broadcasts bind, 20 or 28 rows of one vector reach 80 to 85 % of the peak."""

AVX2 = Machine(
    vector_bits=256, registers=16, instructions_per_cycle=4, has_embedded_broadcast=False, l2_bytes_per_cycle=16
)
SSE = replace(AVX2, vector_bits=128)
NEON = Machine(vector_bits=128, registers=32, instructions_per_cycle=4)

ZEN4 = replace(AVX512, fma_per_cycle=1, loads_per_cycle=1, loads_per_broadcast=0.5)
"""Vectors go through units half as wide, in two halves; a broadcast is one load of a half."""

MACHINES = (AVX512, AVX2, SSE, NEON)
"""One machine for each width and number of vector registers."""

MACHINE_BY_CPU = {"znver4": ZEN4}
"""Machine by LLVM's name of a CPU, where its width alone would mislead."""
