"""Work sharing and barriers: threads divide the outermost parallel loops of a kernel, and each runs all other statements.

local %t: f32[64]                             one copy per thread
for %k in 0..64 { store %w[%k], %t[%k] }      run by every thread
parallel %i in 0..96 { ... %t[%k] ... }       divided among the threads
parallel %i in 96..100 { ... }                divided among the threads
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from compiler.ir.scalar import Load
from compiler.ir.symbolic.bounds import bounds_of_expr, is_provably_less
from compiler.ir.symbolic.index_expr import Bounds, Dim, dynamic_sizes, interval, variables
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Stmt, Store, stmt_body, stmt_exprs, stmt_ranges, walk


def is_parallelizable(kernel: Kernel) -> bool:
    """Return True if threads may share `kernel`: it has parallel loops, and all other statements write only local buffers.

    Parallel loops must not write these buffers, of which each thread has its own copy.
    """
    loops = tuple(s for s in kernel.body if isinstance(s, For) and s.parallel)
    serial_stmts = tuple(s for s in kernel.body if not (isinstance(s, For) and s.parallel))
    local_buffers = {s.buffer for s in walk(serial_stmts) if isinstance(s, Local)}
    writes_only_locals = _stored_buffers(serial_stmts) <= local_buffers
    return bool(loops) and writes_only_locals and not _stored_buffers(loops) & local_buffers


def barrier_points(kernel: Kernel) -> frozenset[int]:
    """Return the positions in `kernel.body` before which all threads must have finished the earlier statements."""
    points = set()
    since_barrier = set[_MemoryAccess]()
    written = _stored_buffers(kernel.body) if len(kernel.body) > 1 else set()
    for k, stmt in enumerate(kernel.body):
        accesses = set(_memory_accesses((stmt,), {}, written))
        if any(a.conflicts_with(b) for a in since_barrier for b in accesses):
            points.add(k)
            since_barrier = set()
        since_barrier |= accesses
    return frozenset(points)


IndexBounds: TypeAlias = tuple[Dim, Dim] | None
"""Lowest and highest value of an index, or None if unknown."""


@lru_cache(maxsize=4096)
def are_disjoint_bounds(a: IndexBounds, b: IndexBounds) -> bool:
    """Return True if two ranges of an index provably have no value in common."""
    return a is not None and b is not None and (is_provably_less(a[1], b[0]) or is_provably_less(b[1], a[0]))


@dataclass(frozen=True)
class _MemoryAccess:
    """Load or store of a buffer, with bounds of each index."""

    buffer: str
    index_bounds: tuple[IndexBounds, ...]
    is_store: bool

    def conflicts_with(self, other: _MemoryAccess) -> bool:
        """Return True if the order of the two accesses may matter; disjoint ranges of one index rule that out."""
        if self.buffer != other.buffer or not (self.is_store or other.is_store):
            return False
        return not any(map(are_disjoint_bounds, self.index_bounds, other.index_bounds))


def _memory_accesses(body: Block, bounds: Bounds, buffers: Collection[str]) -> Iterator[_MemoryAccess]:
    """Yield the accesses of `body` to `buffers`, with loop variables within `bounds`."""
    for stmt in body:
        inner = dict(bounds)
        for r in stmt_ranges(stmt):
            low, high = interval(r.lo, inner), interval(r.hi, inner)
            if dynamic_sizes(r.extent) and not variables(r.lo) and not variables(r.hi):
                inner[r.var] = r.lo, r.hi - 1
            elif low and high:
                inner[r.var] = low[0], high[1] - 1
        accesses = [(e.buffer, e.index, False) for e in _loads(stmt)]
        if isinstance(stmt, Store):
            accesses.append((stmt.buffer, stmt.index, True))
        for buffer, index, is_store in accesses:
            if buffer in buffers:
                yield _MemoryAccess(buffer, tuple(bounds_of_expr(d, inner) for d in index), is_store)
        yield from _memory_accesses(stmt_body(stmt), inner, buffers)


def _loads(stmt: Stmt) -> Iterator[Load]:
    return (e for value in stmt_exprs(stmt) for e in value.loads)


def _stored_buffers(body: Block) -> set[str]:
    return {s.buffer for s in walk(body) if isinstance(s, Store)}
