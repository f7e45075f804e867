"""Tile the loops of a kernel into blocks of a GPU program."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.ir.symbolic.index_expr import product
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.gpu.gpu_dot import block_extent, is_tiled
from compiler.passes.gpu.gpu_rows import next_power_of_2


@register
@dataclass(frozen=True)
class GpuBlocks(TilePass):
    """Tile the loops that `gpu-dot` and `gpu-rows` left untiled.

    parallel %i in 0..50 { %s = reduce add %r in 0..100 { yield %x[%i, %r] } ... }
    ->  parallel %i in 0..50 tile 8 { %s = reduce add %r in 0..100 tile 128 { yield %x[%i, %r] } ... }

    A reduction takes up to `row_elements` per step, `strided_elements` if none of its loops is contiguous.  Then parallel
    loops, inner ones first, fill a block of `block_elements`.  Parallel loops of kernels that are tiled already, and
    reductions over windows of at most `max_loop_extent`, stay as they are.
    """

    name = "gpu-blocks"
    block_elements: int = from_machine("gpu_block")
    row_elements: int = from_machine("gpu_reduced_block")
    strided_elements: int = from_machine("gpu_strided_block")
    max_loop_extent: int = from_machine("gpu_window")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        sizes: dict[str, int] = {}
        parallel_loops = [s for s in tile.walk(ir.body) if isinstance(s, For) and s.parallel]
        for stmt in tile.walk(ir.body):
            if not ((isinstance(stmt, For) and stmt.parallel) or is_tiled(stmt)):
                self.block_inner_loops(table, stmt, sizes)
        if not any(is_tiled(s) for s in parallel_loops):
            remaining = self.block_elements // largest_block(ir.body, sizes)
            for s in reversed(parallel_loops):
                sizes[s.range.var] = max(1, min(remaining, next_power_of_2(block_extent(s.range))))
                remaining //= sizes[s.range.var]
        sizes = {v: n for v, n in sizes.items() if context.may_apply(self, f"%{v} in blocks of {n}")}
        return ir.with_body(tile.map_ranges(ir.body, lambda r, _: r.with_(tile=sizes.get(r.var, r.tile))))

    def block_inner_loops(self, table: Accesses, stmt: Stmt, sizes: dict[str, int]) -> None:
        """Choose tiles for an innermost reduction or serial loop with independent steps, last range first."""
        if any(tile.stmt_ranges(s) for s in tile.walk(tile.stmt_body(stmt))):
            return
        if isinstance(stmt, For) and not table.is_parallel(stmt.range.var):
            return
        loops = [r for r in tile.stmt_ranges(stmt) if block_extent(r) > self.max_loop_extent]
        remaining = (
            self.row_elements if any(self.is_contiguous(table, stmt, r) for r in loops) else self.strided_elements
        )
        for r in reversed(loops):
            sizes[r.var] = max(1, min(remaining, next_power_of_2(block_extent(r))))
            remaining //= sizes[r.var]

    @staticmethod
    def is_contiguous(table: Accesses, stmt: Stmt, r: Range) -> bool:
        """Return True if some access has stride 1 along `r`."""
        return any(table.stride(a, r.var) == 1 for a in table.all if r in a.loops)


def largest_block(body: Block, sizes: dict[str, int]) -> int:
    """Return the elements of the largest block that nested loops of `body` span."""
    spans = (
        product(sizes.get(r.var, r.tile) for r in tile.stmt_ranges(s)) * largest_block(tile.stmt_body(s), sizes)
        for s in body
    )
    return max((n for n in spans if isinstance(n, int)), default=1)
