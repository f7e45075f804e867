"""Give the loops that are left to blocks of a GPU program."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.index import product
from compiler.ir.tile import Block, For, Kernel, Range, Stmt
from compiler.passes.access import Accesses
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.gpu_dot import is_block, length
from compiler.passes.tile.gpu_rows import power_of_two


@register
@dataclass(frozen=True)
class GpuBlocks(TilePass):
    """parallel %i in 0..50 { %s = reduce add %r in 0..100 { yield %x[%i, %r] } ... }
    ->  parallel %i in 0..50 tile 8 { %s = reduce add %r in 0..100 tile 128 { yield %x[%i, %r] } ... }

    A reduction takes up to `row` elements of memory order per step (`across` where its steps are far apart), then parallel
    loops, inner ones first, fill a block of `elements`.  Kernels that multiply blocks are blocks already; short windows stay
    loops.
    """

    name = "gpu-blocks"
    elements: int = 1024
    row: int = 2048
    across: int = 16
    window: int = 4

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        sizes: dict[str, int] = {}
        shared = [s for s in tile.walk(ir.body) if isinstance(s, For) and s.parallel]
        for stmt in tile.walk(ir.body):
            if not ((isinstance(stmt, For) and stmt.parallel) or is_block(stmt)):
                self.fill(table, stmt, sizes)
        if not any(is_block(s) for s in shared):
            left = self.elements // widest(ir.body, sizes)
            for s in reversed(shared):
                sizes[s.range.var] = max(1, min(left, power_of_two(length(s.range))))
                left //= sizes[s.range.var]
        for v, n in sizes.items():
            context.applied(self, f"%{v} in blocks of {n}")
        return ir.with_body(tile.map_ranges(ir.body, lambda r, _: r.with_(tile=sizes.get(r.var, r.tile))))

    def fill(self, table: Accesses, stmt: Stmt, sizes: dict[str, int]) -> None:
        """Blocks for a serial loop around plain statements, whose steps do not wait for each other, or for a reduction; the last range first."""
        if any(tile.ranges(s) for s in tile.walk(tile.blocks(stmt))):
            return
        if isinstance(stmt, For) and not table.independent(stmt.range.var):
            return
        loops = [r for r in tile.ranges(stmt) if length(r) > self.window]
        left = self.row if any(self.contiguous(table, stmt, r) for r in loops) else self.across
        for r in reversed(loops):
            sizes[r.var] = max(1, min(left, power_of_two(length(r))))
            left //= sizes[r.var]

    @staticmethod
    def contiguous(table: Accesses, stmt: Stmt, r: Range) -> bool:
        """Whether successive steps of `r` touch successive elements."""
        return any(table.step(a, r.var) == 1 for a in table.all if r in a.loops)


def widest(body: Block, sizes: dict[str, int]) -> int:
    """Elements of the largest block that nested loops of `body` span."""
    spans = (product(sizes.get(r.var, r.tile) for r in tile.ranges(s)) * widest(tile.blocks(s), sizes) for s in body)
    return max((n for n in spans if isinstance(n, int)), default=1)
