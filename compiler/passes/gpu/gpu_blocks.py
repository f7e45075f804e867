"""Tile the loops of a kernel into blocks of a GPU program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.gpu_contraction import block_extent, is_parallel, next_power_of_2
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import product, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_dot import is_tiled
from compiler.passes.gpu.gpu_rows import gpu_of

FEWEST_WARPS = 4
"""Warps of a small block: one for each scheduler of a multiprocessor."""

STRIDED_STEPS = 16
"""Steps of a reduction taken at once if most of what it reads is not contiguous along its loops: the loops around it fill the block."""


@register
@dataclass(frozen=True)
class GpuBlocks(TilePass):
    """Tile the loops that `gpu-dot` and `gpu-rows` left untiled, and choose the warps.

    kernel { parallel %i in 0..50 { %s = reduce add %r in 0..100 { yield %x[%i, %r] } ... } }
    ->  kernel warps 4 { parallel %i in 0..50 tile 4 { %s = reduce add %r in 0..100 tile 128 { yield %x[%i, %r] } ... } }

    A block has as many elements as `FEWEST_WARPS` warps access with the widest loads of the machine, `elements` if that is not 0, and fewer
    where multiprocessors would be idle.  A reduction takes two such blocks a step, `STRIDED_STEPS` steps if most of what it
    reads is not contiguous along its loops; then parallel loops, inner ones first, fill a block.  Where some accesses are contiguous along one parallel loop and some
    along another, a block has a cache line of both, so that a transpose goes through shared memory.  Short windows that follow each
    other in memory are part of the block, as %r in 0..2 of %x[%i*2 + %r].  Parallel loops of kernels that are tiled already, loops
    that bounds depend on, and reductions over other short windows, stay as they are.
    """

    name = "gpu-blocks"
    elements: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table, gpu = Accesses(ir), gpu_of(context)
        sizes: dict[str, int] = {}
        bounding = {
            v for s in tile.walk(ir.body) for r in tile.stmt_ranges(s) for d in (r.lo, r.hi) for v in variables(d)
        }
        parallel_loops = [s for s in tile.walk(ir.body) if tile.is_parallel_loop(s) and s.range.var not in bounding]
        elements = self.elements or block_elements(table, gpu)
        for stmt in tile.walk(ir.body):
            if not (tile.is_parallel_loop(stmt) or is_tiled(stmt)):
                self.block_inner_loops(table, stmt, sizes, elements, gpu)
        if not any(is_tiled(s) for s in parallel_loops):
            remaining = elements // largest_block(ir.body, sizes)
            transposed = transposed_loops(table, parallel_loops)
            for s in reversed(parallel_loops):
                most = gpu.line_bytes // narrowest_bytes(table, gpu) if s in transposed else remaining
                if s in transposed or not transposed:
                    sizes[s.range.var] = max(1, min(most, next_power_of_2(block_extent(s.range))))
                    remaining //= sizes[s.range.var]
        reductions = [s for s in tile.walk(ir.body) if isinstance(s, Reduce) and not is_tiled(s)]
        sizes |= {r.var: block_extent(r) for s in reductions for r in adjacent_windows(table, s)}
        body = tile.map_ranges(ir.body, lambda r, _: r.with_(tile=sizes.get(r.var, r.tile)))
        warps = ir.warps or block_warps(largest_block(body, {}), gpu)
        blocked = ", ".join(f"%{v} in blocks of {n}" for v, n in sizes.items() if n > 1)
        if body == ir.body and warps == ir.warps:
            return ir
        may_apply = context.may_apply(self, f"{blocked or 'no more blocks'}; {warps} warps")
        return replace(ir, body=body, warps=warps) if may_apply else ir

    def block_inner_loops(self, table: Accesses, stmt: Stmt, sizes: dict[str, int], elements: int, gpu: GPU) -> None:
        """Choose tiles for an innermost reduction or serial loop with independent steps, last range first."""
        if any(tile.stmt_ranges(s) for s in tile.walk(tile.stmt_body(stmt))):
            return
        if isinstance(stmt, For) and not table.is_parallel(stmt.range.var):
            return
        loops = [r for r in tile.stmt_ranges(stmt) if block_extent(r) > gpu.window]
        remaining = 2 * elements if loops and is_contiguous(table, loops) else STRIDED_STEPS
        for r in reversed(loops):
            sizes[r.var] = max(1, min(remaining, next_power_of_2(block_extent(r))))
            remaining //= sizes[r.var]


def adjacent_windows(table: Accesses, s: Reduce) -> list[Range]:
    """Return the innermost loop of a reduction over windows of a power of two that follow each other along a parallel loop."""
    loop, loads = s.ranges[-1], table.loads_of(s)
    extent = block_extent(loop)

    def is_row(a: Access) -> bool:
        strides = [table.stride(a, r.var) for r in a.loops if is_parallel(table, r)]
        return not a.is_masked and table.stride(a, loop.var) == 1 and extent in strides

    is_power = isinstance(loop.extent, int) and extent > 1 and next_power_of_2(extent) == extent
    return [loop] if is_power and loads and all(map(is_row, loads)) else []


def block_elements(table: Accesses, gpu: GPU) -> int:
    """Return the elements of a block: each thread makes the widest accesses, unless multiprocessors would be idle then."""
    least = FEWEST_WARPS * gpu.warp_threads
    elements = least * max(1, gpu.access_bytes // narrowest_bytes(table, gpu))
    work = max((prod(block_extent(r) for r in a.loops) for a in table.all), default=1)
    while elements > least and work < elements * gpu.multiprocessors:
        elements //= 2
    return elements


def narrowest_bytes(table: Accesses, gpu: GPU) -> int:
    """Return the bytes of the narrowest elements that are accessed."""
    return min((table.types[a.buffer].dtype.bytes for a in table.all), default=gpu.access_bytes)


def transposed_loops(table: Accesses, loops: list[For]) -> list[For]:
    """Return the parallel loops that accesses over several of them are contiguous along, if there is more than one."""
    names = {s.range.var for s in loops}
    shared = [a for a in table.all if table.roles[a.buffer] != "local"]
    wide = [a for a in shared if sum(table.depends_on(a, v) for v in names & a.loop_vars) > 1]
    found = [s for s in loops if any(table.stride(a, s.range.var) == 1 for a in wide if s.range.var in a.loop_vars)]
    return found if len(found) > 1 else []


def block_warps(elements: int, gpu: GPU) -> int:
    """Return the warps that hold a block of values in registers, `thread_elements` in a thread."""
    return max(FEWEST_WARPS, min(gpu.max_warps, elements // (gpu.warp_threads * gpu.thread_elements)))


def is_contiguous(table: Accesses, loops: Sequence[Range]) -> bool:
    """Return True if accesses inside `loops` touch no fewer elements with stride 1 along these than along parallel loops around them."""
    inner, outer = 0, 0
    for a in (a for a in table.all if loops[0] in a.loops):
        along = [r for r in a.loops if table.stride(a, r.var) == 1]
        elements = prod(block_extent(r) for r in a.loops if table.depends_on(a, r.var))
        inner += elements * any(r in loops for r in along)
        outer += elements * any(is_parallel(table, r) for r in along)
    return inner > 0 and inner >= outer


def largest_block(body: Block, sizes: dict[str, int]) -> int:
    """Return the elements of the largest block that nested loops of `body` span."""
    spans = (
        product(sizes.get(r.var, r.tile) for r in tile.stmt_ranges(s)) * largest_block(tile.stmt_body(s), sizes)
        for s in body
    )
    return max((n for n in spans if isinstance(n, int)), default=1)
