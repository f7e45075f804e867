"""Results of contractions that leave the caches: the order of loops that writes their lines one after another."""

from __future__ import annotations

from math import prod

from compiler.analysis.accesses import Accesses, buffer_bytes
from compiler.analysis.operand_reuse import ContractionReuse
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir.tile.kernel import extent_hint


def streams_results(table: Accesses, reuse: ContractionReuse, machine: Machine) -> bool:
    """Return True if a contraction is best computed row by row, as its results come from beyond the second-level cache.

    With loops over panels outside, each panel writes a few lines of every row, from places too far apart for hardware to
    prefetch.  Short sums do not hide their latency.  Row by row, each row rereads the panels, which must stay in the cache:
    in the first level where each row is part of all batches, as in Winograd's algorithm.
    """
    stores = [a for a in table.all if a.is_store]
    contiguous = [f for f in reuse.panel_loops if all(table.stride(a, f.range.var) == 1 for a in stores)]
    if not contiguous or any(f in reuse.batch_loops for f in contiguous):
        return False
    if sum({a.buffer: buffer_bytes(table, a) for a in stores}.values()) <= machine.l2:
        return False
    cache = machine.l1 if reuse.interleaves_batches else machine.l2 // 2
    return reuse.panel_bytes <= cache and cycles_per_line(table, reuse, machine) < machine.l3_latency


def cycles_per_line(table: Accesses, reuse: ContractionReuse, machine: Machine) -> float:
    """Return the cycles of the multiply-adds behind a cache line of results."""
    steps = sum(prod(map(extent_hint, s.ranges)) for s in reuse.contractions)
    bits = max(s.value.dtype.bits for s in reuse.contractions)
    elements = CACHE_LINE_BYTES / min(table.types[a.buffer].dtype.bytes for a in table.all if a.is_store)
    return steps * elements / machine.lanes(bits) / machine.fma_per_cycle
