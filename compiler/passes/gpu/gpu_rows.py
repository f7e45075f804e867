"""Hold the local buffers of a GPU kernel in registers, one block value each."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, register

MIN_BLOCK = 16
"""Smallest extent of a block that matrix units multiply (`tl.dot` of Triton)."""


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
        index_vars = {str(d) for a in table.all if table.roles[a.buffer] == "local" for d in a.index}

        def rule(r: Range, _: Stmt) -> Range:
            if r.var not in index_vars or not isinstance(r.extent, int):
                return r
            if not context.may_apply(self, f"%{r.var}: a row of {r.extent} in one block", required=True):
                return r
            return r.with_(tile=max(MIN_BLOCK, next_power_of_2(r.extent)))

        return ir.with_body(tile.map_ranges(ir.body, rule))


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()
