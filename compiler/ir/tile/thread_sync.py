"""Work sharing and barriers: threads divide the outermost parallel loops of a kernel, and each runs all other statements.

local %t: f32[64]                             one copy per thread
for %k in 0..64 { store %w[%k], %t[%k] }      run by every thread
parallel %i in 0..96 { ... %t[%k] ... }       divided among the threads
parallel %i in 96..100 { ... }                divided among the threads
"""

from __future__ import annotations

from compiler.ir.tile.dependence import MemoryAccess, may_conflict, memory_accesses
from compiler.ir.tile.kernel import For, Kernel, Local, copied_buffers, stored_buffers, walk


def is_parallelizable(kernel: Kernel) -> bool:
    """Return True if threads may share `kernel`: it has parallel loops, and all other statements write only local buffers.

    Parallel loops must not write these buffers, of which each thread has its own copy.
    """
    loops = tuple(s for s in kernel.body if isinstance(s, For) and s.parallel)
    serial_stmts = tuple(s for s in kernel.body if not (isinstance(s, For) and s.parallel))
    local_buffers = {s.buffer for s in walk(serial_stmts) if isinstance(s, Local)}
    writes_only_locals = stored_buffers(serial_stmts) <= local_buffers
    return bool(loops) and writes_only_locals and not stored_buffers(loops) & local_buffers


def barrier_points(kernel: Kernel) -> frozenset[int]:
    """Return the positions in `kernel.body` before which all threads must have finished the earlier statements.

    An asynchronous copy may be under way after a barrier, so accesses to its buffers are never left behind.
    """
    points = set()
    since_barrier = dict[object, MemoryAccess]()
    written = stored_buffers(kernel.body) if len(kernel.body) > 1 else set()
    copied = copied_buffers(kernel.body) if written else set()
    for k, stmt in enumerate(kernel.body):
        accesses: dict[object, MemoryAccess] = {
            (a.buffer, a.index_bounds, a.is_store): a for a in memory_accesses((stmt,), written)
        }
        if any(may_conflict(a, b) for a in since_barrier.values() for b in accesses.values()):
            points.add(k)
            since_barrier = {key: a for key, a in since_barrier.items() if a.buffer in copied}
        since_barrier |= accesses
    return frozenset(points)
