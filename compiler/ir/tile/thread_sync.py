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

from compiler.ir.scalar import Load
from compiler.ir.symbolic.bounds import bounds_of_expr, is_provably_less
from compiler.ir.symbolic.index_expr import Bounds, Dim, dynamic_sizes, interval, variables
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Stmt, Store, stmt_body, stmt_exprs, stmt_ranges, walk


def is_parallelizable(kernel: Kernel) -> bool:
    """Whether threads may run `kernel` together: beside its parallel loops, nothing is written but local buffers, by all alike."""
    loops = [s for s in kernel.body if isinstance(s, For) and s.parallel]
    serial_stmts = [s for s in kernel.body if not (isinstance(s, For) and s.parallel)]
    local_buffers = {s.buffer for s in walk(tuple(serial_stmts)) if isinstance(s, Local)}
    return (
        bool(loops)
        and _stored_buffers(tuple(serial_stmts)) <= local_buffers
        and not _stored_buffers(tuple(loops)) & local_buffers
    )


def barrier_points(kernel: Kernel) -> frozenset[int]:
    """The statements of `kernel.body`, by number, before which all threads must have finished those that come earlier."""
    found = set()
    since = set[_MemoryAccess]()
    written = _stored_buffers(kernel.body) if len(kernel.body) > 1 else set()
    for k, stmt in enumerate(kernel.body):
        accesses = set(_memory_accesses((stmt,), {}, written))
        if any(a.conflicts_with(b) for a in since for b in accesses):
            found.add(k)
            since = set()
        since |= accesses
    return frozenset(found)


IndexBounds: TypeAlias = tuple[Dim, Dim] | None
"""The lowest and highest value of an index, where it is known."""


@lru_cache(maxsize=4096)
def _are_disjoint(a: IndexBounds, b: IndexBounds) -> bool:
    """Whether two spans have nothing in common."""
    return a is not None and b is not None and (is_provably_less(a[1], b[0]) or is_provably_less(b[1], a[0]))


@dataclass(frozen=True)
class _MemoryAccess:
    """Loads or stores of one buffer, and where each index lies."""

    buffer: str
    index_bounds: tuple[IndexBounds, ...]
    is_store: bool

    def conflicts_with(self, other: _MemoryAccess) -> bool:
        """Whether the order of the two may matter; the ranges of one index may tell them apart."""
        if self.buffer != other.buffer or not (self.is_store or other.is_store):
            return False
        return not any(map(_are_disjoint, self.index_bounds, other.index_bounds))


def _memory_accesses(body: Block, bounds: Bounds, buffers: Collection[str]) -> Iterator[_MemoryAccess]:
    """How `body` touches `buffers` where loop variables lie within `bounds`."""
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
        for buffer, index, stores in accesses:
            if buffer in buffers:
                yield _MemoryAccess(buffer, tuple(bounds_of_expr(d, inner) for d in index), stores)
        yield from _memory_accesses(stmt_body(stmt), inner, buffers)


def _loads(stmt: Stmt) -> Iterator[Load]:
    return (e for value in stmt_exprs(stmt) for e in value.loads)


def _stored_buffers(body: Block) -> set[str]:
    return {s.buffer for s in walk(body) if isinstance(s, Store)}
