"""Hold the local buffers of a GPU kernel in registers, one block value each."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_product import MIN_BLOCK
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class GpuRows(TilePass):
    """Tile loops over local buffers so that one step covers the buffer.

    for %k in 0..100 { store exp(...), %kept[%k] }  ->  for %k in 0..100 tile 128 { store exp(...), %kept[%k] }

    Applies to every loop of static extent whose variable indexes a local buffer.  Tiles are powers of two, as Triton's
    blocks are.
    """

    name = "gpu-rows"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        local = (a for a in table.all if table.roles[a.buffer] == "local")
        index_vars = {r.var for a in local for d in a.index for r in a.loops if d == var(r.var) - r.lo}

        def rule(r: Range, _: Stmt) -> Range:
            if r.var not in index_vars or not isinstance(r.extent, int):
                return r
            context.applied(self, f"%{r.var}: a row of {r.extent} in one block")
            return r.with_(tile=max(MIN_BLOCK, next_power_of_2(r.extent)))

        return ir.with_body(tile.map_ranges(ir.body, rule))


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def gpu_of(context: Context) -> GPU:
    """Return the GPU that passes choose for; an H100 if the target is none."""
    return context.machine if isinstance(context.machine, GPU) else GPU()
