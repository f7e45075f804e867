"""Hold the local buffers of a GPU kernel in registers, one block value each."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.analysis.local_blocks import row_loops
from compiler.cost.gpu_contraction import row_tile
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import interval
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class GpuRows(TilePass):
    """Tile loops over local buffers so that one step covers the buffer.

    for %k in 0..100 { store exp(...), %kept[%k] }  ->  for %k in 0..100 tile 128 { store exp(...), %kept[%k] }

    Applies to every loop of bounded extent whose variable indexes a local buffer.  Tiles are powers of two, as Triton's
    blocks are.
    """

    name = "gpu-rows"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        rows = row_loops(table)

        def rule(r: Range, _: Stmt) -> Range:
            extent = interval(r.extent, table.loop_bounds)
            if r.var not in rows or extent is None:
                return r
            if not context.may_apply(self, f"%{r.var}: a row of {r.extent} in one block", required=True):
                return r
            return r.with_(tile=row_tile(extent[1]))

        return ir.with_body(tile.map_ranges(ir.body, rule))


def gpu_of(context: Context) -> GPU:
    """Return the GPU that passes choose for; an H100 if the target is none."""
    return context.machine if isinstance(context.machine, GPU) else GPU()
