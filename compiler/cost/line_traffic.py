"""Lines that a kernel's accesses touch, and those that they fetch into a cache.

From the innermost loop outwards, a loop finds what its last iteration left in a cache, if one iteration fits there, and
fetches only what is new; else it fetches all again.  The footprint of an iteration follows from the strides and extents
of its accesses.  The kernel is assumed to be called repeatedly, so data that fit a cache stay in it.  Lines may be those
of caches, or pages, whose translations a TLB keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.cost.contraction import resident_lines
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.tile_strides import TileStrides, tile_extent, trip_count_hint
from compiler.ir.tile.kernel import Block, Range, stmt_body, stmt_ranges


@dataclass(frozen=True)
class Level:
    """A cache of so many `lines`, and the further cycles of a line that is not in it, in a stream or in short runs.

    `is_first` holds for the one next to the core.
    """

    lines: float
    miss_cycles: float
    scattered_cycles: float
    is_first: bool = False


@dataclass(frozen=True)
class Footprint:
    """Lines of one buffer: those touched, and those fetched into each level by `accesses`."""

    touched: float
    fetched: Mapping[Level, float]
    accesses: tuple[Access, ...]


Footprints = Mapping[str, Footprint]
"""The footprint of each buffer."""


PAGE_BYTES = 4096
"""Bytes of a page, at whose end hardware stops to prefetch."""

MAX_COUNTED_LINES = 1 << 14
"""Most lines that are compared to find those that several accesses share; bounds compile time."""


def line_numbers(base: int, steps: Sequence[tuple[int, int]], size: int, line: int) -> numpy.ndarray[Any, Any]:
    """Return the lines of elements of `size` bytes at `base` and all sums of multiples of `steps`, (stride, count)."""
    run, starts = size, numpy.array([base])
    for stride, n in steps:
        if stride < run + line and len(starts) == 1:
            run += stride * (n - 1)
        else:
            starts = (starts[:, None] + stride * numpy.arange(n)).ravel()
    return (starts[:, None] // line + numpy.arange(-(-run // line))).ravel()


class LineTraffic:
    """Lines of `line` bytes that a kernel's accesses touch, and that they fetch into each of `levels`."""

    def __init__(
        self,
        accesses: Accesses,
        machine: Machine,
        levels: tuple[Level, ...],
        line: int,
        shared_memory: Mapping[str, str] | None = None,
    ) -> None:
        self.accesses, self.machine, self.strides = accesses, machine, TileStrides(accesses)
        self.levels, self.line = levels, line
        self.shared_memory = shared_memory or {}
        """Parameters that lie in the memory of another one, which the kernel updates in place."""
        self.by_statement: dict[int, list[Access]] = {}
        for a in accesses.all:
            self.by_statement.setdefault(id(a.stmt), []).append(a)

    @cached_property
    def footprints(self) -> Footprints:
        """The footprint of each buffer in one call."""
        return self.block(self.accesses.kernel.body, {})

    def block(self, body: Block, scope: Mapping[str, Range]) -> Footprints:
        """Return the footprints of statements inside the loops of `scope`."""
        parts = list[Footprints]()
        for stmt in body:
            ranges = stmt_ranges(stmt)
            inner = {**scope, **{r.var: r for r in ranges}}
            own = [self.access(a, inner) for a in self.by_statement.get(id(stmt), [])]
            footprints = self.merge([self.block(stmt_body(stmt), inner), *own], inner)
            for r in reversed(ranges):
                del inner[r.var]
                footprints = self.leave(footprints, r, inner)
            parts.append(footprints)
        return self.merge(parts, scope)

    def access(self, a: Access, scope: Mapping[str, Range]) -> Footprints:
        """Return the footprint of an access for one tile."""
        touched = self.lines(a, scope)
        return {
            self.shared_memory.get(a.buffer, a.buffer): Footprint(touched, dict.fromkeys(self.levels, touched), (a,))
        }

    def merge(self, parts: Sequence[Footprints], scope: Mapping[str, Range]) -> Footprints:
        """Return the footprints of statements in sequence: what fits is fetched once for all."""
        parts = [p for p in parts if p]
        if len(parts) == 1:
            return parts[0]
        groups = {n: [p[n] for p in parts if n in p] for n in dict.fromkeys(n for p in parts for n in p)}
        together = {n: tuple(a for f in fs for a in f.accesses) for n, fs in groups.items()}
        joint = {n: Footprint(self.joint_lines(accesses, scope), {}, accesses) for n, accesses in together.items()}
        shares = {level: self.miss_share(level, joint) for level in self.levels}

        def fetched(n: str, level: Level) -> float:
            total, repeated = sum(f.fetched[level] for f in groups[n]), sum(f.touched for f in groups[n])
            return max(joint[n].touched, total - (repeated - joint[n].touched) * (1 - shares[level]))

        return {n: Footprint(f.touched, {v: fetched(n, v) for v in self.levels}, f.accesses) for n, f in joint.items()}

    def leave(self, inside: Footprints, r: Range, scope: Mapping[str, Range]) -> Footprints:
        """Return the footprints of all iterations of loop `r` in `scope`, given those of one iteration."""
        trips, result = trip_count_hint(r), dict[str, Footprint]()
        shares = {level: self.miss_share(level, inside) for level in self.levels}
        for n, f in inside.items():
            touched = self.joint_lines(f.accesses, scope)
            growth = min(trips, max(1.0, touched / f.touched))
            conflicts = trips > 1 and any(self.has_conflicts(a, {**scope, r.var: r}) for a in f.accesses)
            fetched = {
                level: f.fetched[level] * (growth + (trips - growth) * (1.0 if level.is_first and conflicts else share))
                for level, share in shares.items()
            }
            result[n] = Footprint(touched, fetched, f.accesses)
        return result

    def steps(self, a: Access, scope: Mapping[str, Range]) -> list[tuple[int, int]]:
        """Return (stride in bytes, count) of the steps of `a`, shortest first: one tile of loops in `scope`, all of others."""
        size = self.accesses.types[a.buffer].dtype.bytes * self.strides.private_copies(a)
        result, gathered = list[tuple[int, int]](), list[int]()
        for r in a.loops:
            if r.var in self.accesses.local_scopes.get(a.buffer, ()):
                continue
            steps = [(self.strides.in_tile(a, r.var), tile_extent(r))] if r.tile > 1 else []
            if r.var not in scope:
                steps.append((self.strides.step(a, r.var), trip_count_hint(r)))
            gathered += [n for s, n in steps if s is None]
            result += [(abs(s) * size, n) for s, n in steps if s is not None]
        result = sorted(s for s in result if s[0] and s[1] > 1)
        apart = size + sum(stride * (n - 1) for stride, n in result) + self.line
        for n in gathered:  # as if no two lay in one line
            result.append((apart, n))
            apart *= n
        return result

    def lines(self, a: Access, scope: Mapping[str, Range]) -> float:
        """Return the lines that `a` touches in one tile of the loops in `scope`, and all iterations of others."""
        size = self.accesses.types[a.buffer].dtype.bytes * self.strides.private_copies(a)
        run, count, last_stride, last_count = size, 1, 0, 1
        for stride, n in self.steps(a, scope):
            if stride < run + self.line and count == 1:
                run += stride * (n - 1)
            elif last_stride and stride % last_stride == 0 and stride < last_stride * last_count:  # overlapping windows
                count += min(count, stride // last_stride) * (n - 1)
                last_count += n - 1
            else:
                count, last_stride, last_count = count * n, stride, n
        total, whole = count * max(1.0, run / self.line), buffer_bytes(self.accesses, a)
        if not whole or self.accesses.local_scopes.get(a.buffer):
            return total
        return min(total, max(1.0, whole / self.line))

    def joint_lines(self, accesses: Sequence[Access], scope: Mapping[str, Range]) -> float:
        """Return the lines that accesses to one buffer touch together, as `lines` counts them for one."""
        each = {(self.strides.first_address(a), tuple(self.steps(a, scope))): self.lines(a, scope) for a in accesses}
        if len(each) == 1:
            return next(iter(each.values()))
        size = self.accesses.types[accesses[0].buffer].dtype.bytes
        whole = buffer_bytes(self.accesses, accesses[0]) / self.line
        most = min(sum(each.values()), max(1.0, whole)) if whole else sum(each.values())
        if max(each.values()) >= most or sum(each.values()) > MAX_COUNTED_LINES:
            return most
        touched = numpy.concatenate([line_numbers(base * size, steps, size, self.line) for base, steps in each])
        return max(min(most, len(numpy.unique(touched))), *each.values())

    def has_conflicts(self, a: Access, scope: Mapping[str, Range]) -> bool:
        """Return True if the lines that `a` touches share too few sets of the first-level cache to stay there."""
        steps = self.steps(a, scope)
        return any(s >= CACHE_LINE_BYTES and n > resident_lines(s, self.machine) for s, n in steps)

    def miss_share(self, level: Level, footprints: Footprints) -> float:
        """Return the share of what an iteration touched that is gone in the next one: 0 if all fits, 1 if far from it."""
        return self.lost_part(sum(f.touched for f in footprints.values()) / level.lines)

    def lost_part(self, used: float) -> float:
        """Return the part of the data in a cache that is gone after so many times its size was touched."""
        kept = self.machine.kept_share
        return min(1.0, max(0.0, (used - kept) / (self.machine.lost_share - kept)))
