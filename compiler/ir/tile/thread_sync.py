"""Work sharing: threads divide the outermost parallel loops of a kernel, and each runs the other statements that it needs.

local %t: f32[64]                             one copy per thread
for %k in 0..64 { store %w[%k], %t[%k] }      run by every thread
parallel %i in 0..96 { ... %t[%k] ... }       divided among the threads
parallel %i in 96..100 { ... }                divided among the threads

Where the order of iterations matters, a new phase begins (see `parallel_phases`).
"""

from __future__ import annotations

from compiler.ir.tile.dependence import MemoryAccess, may_conflict, memory_accesses
from compiler.ir.tile.kernel import (
    Block,
    BoundsCheck,
    Kernel,
    Let,
    Local,
    Reduce,
    Stmt,
    copied_buffers,
    is_parallel_loop,
    loaded_buffers,
    stored_buffers,
    walk,
)
from compiler.ir.tile.uses import used_names


def is_parallelizable(kernel: Kernel) -> bool:
    """Return True if threads may share `kernel`: it has parallel loops, and all other statements write only local buffers.

    Parallel loops must not write these buffers, of which each thread has its own copy.  A thread runs the other statements
    when it joins, so these must not read what a later parallel loop writes, and no bounds check may follow the last loop.
    """
    loops = tuple(s for s in kernel.body if is_parallel_loop(s))
    if not loops or isinstance(kernel.body[-1], BoundsCheck):
        return False
    serial_stmts = tuple(s for s in kernel.body if not is_parallel_loop(s))
    local_buffers = {s.buffer for s in walk(serial_stmts) if isinstance(s, Local)}
    read = set[str]()
    for s in kernel.body:
        if not is_parallel_loop(s):
            read |= loaded_buffers((s,))
        elif read & stored_buffers((s,)):
            return False
    return stored_buffers(serial_stmts) <= local_buffers and not stored_buffers(loops) & local_buffers


def parallel_phases(kernel: Kernel) -> tuple[Block, ...]:
    """Split a parallelizable kernel into phases: each begins when all iterations of the one before it have finished.

    A phase is the serial statements that it needs, which every thread runs first, followed by the parallel loops whose
    iterations threads share.
    """
    points = barrier_points(kernel)
    phases, serial, loops = list[Block](), list[Stmt](), list[Stmt]()
    for k, stmt in enumerate(kernel.body):
        if k in points and loops:
            phases.append((*_needed(serial, loops), *loops))
            serial, loops = [s for s in serial if not isinstance(s, BoundsCheck)], []
        (loops if is_parallel_loop(stmt) else serial).append(stmt)
    return (*phases, (*_needed(serial, loops), *loops)) if loops else tuple(phases)


def _needed(serial: list[Stmt], loops: list[Stmt]) -> list[Stmt]:
    """Return bounds checks, and the statements whose values or buffers these or `loops` use, in order."""
    used = set[str]().union(*map(_names_used, loops))
    needed = list[Stmt]()
    for s in reversed(serial):
        defined = (
            {s.name} if isinstance(s, (Let, Reduce)) else {s.buffer} if isinstance(s, Local) else stored_buffers((s,))
        )
        if isinstance(s, BoundsCheck) or defined & used:
            needed.insert(0, s)
            used |= _names_used(s)
    return needed


def _names_used(stmt: Stmt) -> set[str]:
    return used_names(stmt) | loaded_buffers((stmt,)) | stored_buffers((stmt,))


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
