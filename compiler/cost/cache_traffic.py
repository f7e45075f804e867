"""Cycles in which a kernel's data move between the levels of the memory hierarchy, and addresses are translated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.cost.line_traffic import PAGE_BYTES, Footprint, Level, LineTraffic
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.tile_strides import tile_extent, trip_count_hint

ReuseDistances = Sequence[tuple[float, float]]
"""Parts of data, and the distinct bytes that were touched since they were touched last."""

NO_REUSE: Mapping[str, ReuseDistances] = {}


class CacheTraffic(LineTraffic):
    """Transfers of a kernel's accesses between caches, and its translations of addresses."""

    def __init__(self, accesses: Accesses, machine: Machine, shared_memory: Mapping[str, str] | None = None) -> None:
        line, m = CACHE_LINE_BYTES, machine
        l3_cycles = m.l3_line_cycles - m.l2_line_cycles
        memory_cycles, scattered = m.memory_line_cycles - m.l3_line_cycles, m.scattered_line_cycles - m.l3_line_cycles
        levels = (
            Level(m.l1 / line, m.l2_line_cycles, m.l2_line_cycles, True),
            Level(m.l2 / line, l3_cycles, l3_cycles),
            Level(m.l3 / line, memory_cycles, scattered),
        )
        super().__init__(accesses, machine, levels, line, shared_memory)

    @cached_property
    def translation_cycles(self) -> float:
        """The cycles of page walks beyond those of streams, whose rates include one for each page of lines."""
        m = self.machine
        tlb = Level(m.tlb_pages, m.page_walk_cycles, m.page_walk_cycles)
        if self.lost_part(sum(map(self.most_pages, self.footprints.values())) / tlb.lines) == 0:
            return 0.0
        pages = LineTraffic(self.accesses, m, (tlb,), PAGE_BYTES, self.shared_memory)
        share, walks = pages.miss_share(tlb, pages.footprints), 0.0
        for n, f in pages.footprints.items():
            streamed = self.footprints[n].fetched[self.levels[0]] * CACHE_LINE_BYTES / PAGE_BYTES
            walks += max(0.0, f.fetched[tlb] - f.touched * (1 - share) - streamed)
        return walks * tlb.miss_cycles

    def most_pages(self, f: Footprint) -> float:
        """Return an upper bound of the pages that are touched."""
        size = buffer_bytes(self.accesses, f.accesses[0])
        return min(f.touched, size / PAGE_BYTES + 1) if size else f.touched

    @cached_property
    def scattered_shares(self) -> Mapping[str, float]:
        """The share of each buffer's lines that are accessed in runs shorter than a page."""
        return {n: self.scattered_share(f.accesses) for n, f in self.footprints.items()}

    def scattered_share(self, accesses: Sequence[Access]) -> float:
        """Return the share of the lines of accesses to one buffer that are in short runs; loops in sequence join theirs."""
        lines, runs = {a: self.lines(a, {}) for a in accesses}, {a: self.run(a) for a in accesses}
        joined: dict[tuple[str, int], dict[str, int]] = {}
        for a, (run, outer, stride) in runs.items():
            if outer:
                joined.setdefault((outer, stride), {})[a.loops[-1].var] = run
        short = 0.0
        for a, (run, outer, stride) in runs.items():
            if run < PAGE_BYTES and sum(joined[outer, stride].values()) + CACHE_LINE_BYTES < stride:
                short += lines[a]
        return short / sum(lines.values())

    def cycles(self, reuse: Mapping[str, ReuseDistances] = NO_REUSE) -> float:
        """Return the cycles of all transfers, each line at the rate of a stream from the level that has it.

        `reuse` tells where the data of a parameter lie before the call; by default, where the last call left them.
        """
        total = 0.0
        for level in self.levels:
            share = self.miss_share(level, self.footprints)
            for n, f in self.footprints.items():
                parts = reuse.get(n, ())
                lost = sum(part * self.lost_part(d / CACHE_LINE_BYTES / level.lines) for part, d in parts)
                fetched = max(0.0, f.fetched[level] - f.touched * (1 - max(share, lost)))
                transfers = self.machine.store_transfers if any(a.is_store for a in f.accesses) else 1.0
                each = level.miss_cycles
                if fetched and level.scattered_cycles != each:
                    scattered = self.scattered_shares[n]
                    each = each * (1 - scattered) + level.scattered_cycles * scattered
                total += fetched * each * transfers
        return total + self.translation_cycles

    def run(self, a: Access) -> tuple[int, str, int]:
        """Return the contiguous bytes that `a` accesses one after another, the loop that goes on elsewhere, and how far away.

        Gaps shorter than a line do not count.  Without such a loop the bytes are those of a page at least.
        """
        run = size = self.accesses.types[a.buffer].dtype.bytes * self.strides.private_copies(a)
        inside = [(self.strides.in_tile(a, r.var), tile_extent(r)) for r in a.loops if r.tile > 1]
        for step, n in sorted((abs(s) * size, n) for s, n in inside if s):
            run += step * (n - 1) if step < run + CACHE_LINE_BYTES else 0
        for r in reversed(a.loops):
            stride, n = self.strides.step(a, r.var), trip_count_hint(r)
            if stride is None:
                return run, r.var, max(PAGE_BYTES, run + CACHE_LINE_BYTES)
            if n > 1 and abs(stride) * size >= run + CACHE_LINE_BYTES:
                return run, r.var, abs(stride) * size
            run += abs(stride) * size * (n - 1)
        return max(run, PAGE_BYTES), "", 0
