"""Cache lines that a kernel moves between the levels of the memory hierarchy.

From the innermost loop outwards, a loop either finds what its last iteration left in a cache, if one iteration fits there,
and fetches only what is new; or it fetches all again.  What an iteration touches is a footprint of lines, from the strides and extents
of each access.  The program is taken to be called repeatedly, so data that fit a cache stay in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.cost.contraction import resident_lines
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.tile_strides import TileStrides, tile_extent
from compiler.ir.tile.kernel import Block, Range, extent_hint, stmt_body, stmt_ranges

PREFETCHED_SHARE = 0.4
"""Share of the time to transfer a line that remains where hardware fetches lines ahead."""

STORE_WEIGHT = 1.5
"""Transfers for each stored line, which is read, and written back."""

MEMORY_FACTOR = 2.0
"""Time of a line from memory, in lines from the last cache."""


@dataclass(frozen=True)
class Level:
    """A cache, or table of pages: `capacity` granules of `granule` bytes, and the cycles of one that is missing."""

    granule: int
    capacity: float
    miss_cycles: float
    has_sets: bool = False


@dataclass
class Footprint:
    """Granules of one buffer: those touched, and those fetched into each level."""

    touched: dict[Level, float]
    fetched: dict[Level, float]
    accesses: list[Access]


class CacheTraffic:
    """Transfers of a kernel's accesses."""

    def __init__(self, accesses: Accesses, machine: Machine) -> None:
        self.accesses, self.machine, self.strides = accesses, machine, TileStrides(accesses)
        line = CACHE_LINE_BYTES
        self.levels = (
            Level(line, machine.l1 / line, line / machine.l2_bytes_per_cycle, True),
            Level(line, machine.l2 / line, line / machine.l3_bytes_per_cycle),
            Level(line, machine.l3 / line, line / machine.l3_bytes_per_cycle * (MEMORY_FACTOR - 1)),
        )
        self.by_statement: dict[int, list[Access]] = {}
        for a in accesses.all:
            self.by_statement.setdefault(id(a.stmt), []).append(a)

    def cycles(self) -> float:
        """Return the cycles of all transfers that are not hidden."""
        footprints = self.block(self.accesses.kernel.body, {})
        total = 0.0
        for level in self.levels:
            share = self.miss_share(level, footprints)
            for buffer, f in footprints.items():
                fetched = f.fetched[level] - f.touched[level] * (1 - share)
                weight = STORE_WEIGHT if any(a.is_store for a in f.accesses) else 1.0
                total += max(0.0, fetched) * level.miss_cycles * weight * PREFETCHED_SHARE
        return total

    def block(self, body: Block, scope: Mapping[str, Range]) -> dict[str, Footprint]:
        """Return the footprint of each buffer that statements access inside the loops of `scope`."""
        parts = list[dict[str, Footprint]]()
        for stmt in body:
            ranges = stmt_ranges(stmt)
            inner = {**scope, **{r.var: r for r in ranges}}
            footprints = self.merge([self.block(stmt_body(stmt), inner), self.own(self.by_statement.get(id(stmt), []), inner)])
            for k in range(len(ranges) - 1, -1, -1):
                footprints = self.leave(footprints, ranges[k], {**scope, **{r.var: r for r in ranges[:k]}})
            parts.append(footprints)
        return self.merge(parts)

    def own(self, accesses: Sequence[Access], scope: Mapping[str, Range]) -> dict[str, Footprint]:
        """Return the footprints of the accesses of one statement, executed for one tile."""
        result: dict[str, Footprint] = {}
        for a in accesses:
            touched = {level: self.granules(a, level, scope) for level in self.levels}
            result = self.merge([result, {a.buffer: Footprint(touched, dict(touched), [a])}])
        return result

    def merge(self, parts: Sequence[dict[str, Footprint]]) -> dict[str, Footprint]:
        """Return the footprints of statements in sequence: what fits is fetched once for all."""
        parts = [p for p in parts if p]
        if len(parts) <= 1:
            return parts[0] if parts else {}
        names = dict.fromkeys(n for p in parts for n in p)
        both = {n: [p[n] for p in parts if n in p] for n in names}
        touched = {n: {lv: max(f.touched[lv] for f in fs) for lv in self.levels} for n, fs in both.items()}
        result = {n: Footprint(touched[n], {}, [a for f in fs for a in f.accesses]) for n, fs in both.items()}
        for level in self.levels:
            share = self.miss_share(level, result)
            for n, fs in both.items():
                total = sum(f.fetched[level] for f in fs)
                repeated = sum(f.touched[level] for f in fs) - touched[n][level]
                result[n].fetched[level] = max(touched[n][level], total - repeated * (1 - share))
        return result

    def leave(self, inside: dict[str, Footprint], r: Range, scope: Mapping[str, Range]) -> dict[str, Footprint]:
        """Return the footprints of a whole loop, given those of one iteration."""
        trips = max(1, -(-extent_hint(r) // r.tile))
        if trips == 1:
            return inside
        result: dict[str, Footprint] = {}
        for n, f in inside.items():
            touched = {level: max(self.granules(a, level, scope) for a in f.accesses) for level in self.levels}
            result[n] = Footprint(touched, {}, f.accesses)
        for level in self.levels:
            share = self.miss_share(level, inside)
            for n, f in inside.items():
                growth = min(trips, max(1.0, result[n].touched[level] / f.touched[level]))
                conflict = 1.0 if level.has_sets and any(self.has_conflicts(a, scope, r) for a in f.accesses) else share
                result[n].fetched[level] = f.fetched[level] * (growth + (trips - growth) * conflict)
        return result

    def miss_share(self, level: Level, footprints: Mapping[str, Footprint]) -> float:
        """Return the share of what an iteration touched that is gone in the next one: 0 if all fits, 1 if far from it."""
        used = sum(f.touched[level] for f in footprints.values()) / level.capacity
        return min(1.0, max(0.0, (used - 0.75) / 0.5))

    def terms(self, a: Access, scope: Mapping[str, Range]) -> list[tuple[int, int]]:
        """Return (stride in bytes, iterations) of each loop that `a` moves along: a tile of loops in `scope`, all of others."""
        size = self.accesses.types[a.buffer].dtype.bytes * self.strides.private_copies(a)
        private = self.accesses.local_scopes.get(a.buffer, frozenset())
        result = list[tuple[int, int]]()
        for r in a.loops:
            if r.var in private:
                continue
            trips, tile = -(-extent_hint(r) // r.tile), tile_extent(r)
            steps = [(self.strides.in_tile(a, r.var), tile)] if tile > 1 else []
            if r.var not in scope and trips > 1:
                steps.append((self.strides.step(a, r.var), trips))
            result += [(CACHE_LINE_BYTES if s is None else abs(s) * size, n) for s, n in steps]
        return sorted(t for t in result if t[0])

    def granules(self, a: Access, level: Level, scope: Mapping[str, Range]) -> float:
        """Return the granules of `level` that `a` touches."""
        size = self.accesses.types[a.buffer].dtype.bytes * self.strides.private_copies(a)
        run, count, last = size, 1, (0, 1)
        for stride, n in self.terms(a, scope):
            if stride <= max(run, level.granule) and count == 1:
                run += stride * (n - 1)
            elif last[0] and stride % last[0] == 0 and stride < last[0] * last[1]:  # overlapping windows
                count, last = count + min(count * (n - 1), stride // last[0] * (n - 1)), (last[0], last[1] + n - 1)
            else:
                count, last = count * n, (stride, n)
        total = count * max(1.0, run / level.granule)
        whole = buffer_bytes(self.accesses, a)
        return min(total, max(1.0, whole / level.granule)) if whole and not self.accesses.local_scopes.get(a.buffer) else total

    def has_conflicts(self, a: Access, scope: Mapping[str, Range], r: Range) -> bool:
        """Return True if the lines that `a` touches in one iteration of `r` share too few sets of the first-level cache."""
        return any(
            stride >= CACHE_LINE_BYTES and n > resident_lines(stride, self.machine)
            for stride, n in self.terms(a, {**scope, r.var: r})
        )
