"""How threads run a kernel together: they share its outermost parallel loops, and each of them repeats what stands beside these.

local %t: f32[64]                        each thread has its own
for %k in 0..64 { store %w[%k], %t[%k] }      and fills it
parallel %i in 0..96 { ... %t[%k] ... }       shared
parallel %i in 96..100 { ... }                shared
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from compiler.ir.index import Bounds, Dim, interval, sizes, variables
from compiler.ir.scalar import Load
from compiler.ir.spans import is_less, span
from compiler.ir.tile import Block, For, Kernel, Local, Stmt, Store, blocks, ranges, values, walk


def is_shared(kernel: Kernel) -> bool:
    """Whether threads may run `kernel` together: beside its parallel loops, nothing is written but local buffers, by all alike."""
    loops = [s for s in kernel.body if isinstance(s, For) and s.parallel]
    rest = [s for s in kernel.body if not (isinstance(s, For) and s.parallel)]
    own = {s.buffer for s in walk(tuple(rest)) if isinstance(s, Local)}
    return bool(loops) and _written(tuple(rest)) <= own and not _written(tuple(loops)) & own


def meetings(kernel: Kernel) -> frozenset[int]:
    """The statements of `kernel.body`, by number, before which all threads must have finished those that come earlier."""
    found = set()
    since = set[_Touch]()
    written = _written(kernel.body) if len(kernel.body) > 1 else set()
    for k, stmt in enumerate(kernel.body):
        touches = set(_touches((stmt,), {}, written))
        if any(a.clashes(b) for a in since for b in touches):
            found.add(k)
            since = set()
        since |= touches
    return frozenset(found)


Span: TypeAlias = tuple[Dim, Dim] | None
"""The lowest and highest value of an index, where it is known."""


@lru_cache(maxsize=4096)
def _apart(a: Span, b: Span) -> bool:
    """Whether two spans have nothing in common."""
    return a is not None and b is not None and (is_less(a[1], b[0]) or is_less(b[1], a[0]))


@dataclass(frozen=True)
class _Touch:
    """Loads or stores of one buffer, and where each index lies."""

    buffer: str
    spans: tuple[Span, ...]
    stores: bool

    def clashes(self, other: _Touch) -> bool:
        """Whether the order of the two may matter; the ranges of one index may tell them apart."""
        if self.buffer != other.buffer or not (self.stores or other.stores):
            return False
        return not any(map(_apart, self.spans, other.spans))


def _touches(body: Block, bounds: Bounds, buffers: Collection[str]) -> Iterator[_Touch]:
    """How `body` touches `buffers` where loop variables lie within `bounds`."""
    for stmt in body:
        inner = dict(bounds)
        for r in ranges(stmt):
            low, high = interval(r.lo, inner), interval(r.hi, inner)
            if sizes(r.extent) and not variables(r.lo) and not variables(r.hi):
                inner[r.var] = r.lo, r.hi - 1
            elif low and high:
                inner[r.var] = low[0], high[1] - 1
        accesses = [(e.buffer, e.index, False) for e in _loads(stmt)]
        if isinstance(stmt, Store):
            accesses.append((stmt.buffer, stmt.index, True))
        for buffer, index, stores in accesses:
            if buffer in buffers:
                yield _Touch(buffer, tuple(span(d, inner) for d in index), stores)
        yield from _touches(blocks(stmt), inner, buffers)


def _loads(stmt: Stmt) -> Iterator[Load]:
    return (e for value in values(stmt) for e in value.loads)


def _written(body: Block) -> set[str]:
    return {s.buffer for s in walk(body) if isinstance(s, Store)}
