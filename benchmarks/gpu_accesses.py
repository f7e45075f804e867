"""What a GPU program accesses: bytes, neighbours in memory, and the cache lines that warps touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, prod

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.gpu_contraction import block_extent, is_parallel, value_at_zero
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import substitute, var
from compiler.ir.tile.kernel import Range, dim_hint


def parameter_accesses(table: Accesses, is_store: bool) -> list[Access]:
    """Return the loads of parameters, or the stores."""
    return [a for a in table.all if a.is_store is is_store and table.roles[a.buffer] != "local"]


def accessed_bytes(table: Accesses, accesses: Iterable[Access]) -> dict[str, int]:
    """Return the bytes that are accessed of each parameter: at most its size."""
    found = dict[str, int]()
    for a in accesses:
        found[a.buffer] = found.get(a.buffer, 0) + elements(table, a) * table.types[a.buffer].dtype.bytes
    return {b: min(size, dim_hint(table.types[b].nbytes)) for b, size in found.items()}


def elements(table: Accesses, a: Access) -> int:
    """Return the elements that an access touches, those of overlapping windows several times."""
    return prod(block_extent(r) for r in a.loops if table.depends_on(a, r.var))


def neighbour_bytes(table: Accesses, a: Access) -> int:
    """Return the bytes that follow each other in memory in a block and its sums, each of which belongs to one iteration.

    %x[2*%i + %k], %k in 0..2, tile 64 of %i: 512 bytes of f32.  %k in 0..3: 12 bytes, because windows overlap.
    """
    loops, count = [r for r in a.loops if r.tile > 1 or not is_parallel(table, r)], 1
    while row := next((r for r in loops if table.stride(a, r.var) == count and block_side(table, r) > 1), None):
        loops.remove(row)
        count *= block_side(table, row)
    return count * table.types[a.buffer].dtype.bytes


def block_side(table: Accesses, r: Range) -> int:
    """Return the iterations of a loop that one program runs."""
    return min(r.tile, block_extent(r)) if is_parallel(table, r) else block_extent(r)


def line_seconds(table: Accesses, accesses: Sequence[Access], gpu: GPU) -> float:
    """Return the time of accesses of single elements in the caches of multiprocessors, which move one line a cycle.

    A warp goes along the loop whose elements are nearest in memory: 32 windows of stride 2 of f32 are two lines of 128 bytes.
    """
    lines = 0.0
    for a in accesses:
        strides = (first_stride(table, a, r.var) for r in a.loops if r.tile > 1 and is_parallel(table, r))
        stride = min((s for s in strides if s), default=1) * table.types[a.buffer].dtype.bytes
        warp_lines = min(gpu.warp_threads, ceil(gpu.warp_threads * stride / gpu.line_bytes))
        lines += elements(table, a) / gpu.warp_threads * warp_lines
    return gpu.seconds(lines / gpu.multiprocessors)


def first_stride(table: Accesses, a: Access, v: str) -> int:
    """Return the distance of the first two elements along a loop: 2 of %x[%i//64, 2*(%i%64)]."""
    offset = table.types[a.buffer].offset(a.index)
    step = value_at_zero(substitute(offset, {v: var(v) + 1}) - offset)
    return abs(step) if isinstance(step, int) else 0
