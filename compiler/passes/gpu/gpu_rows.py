"""Hold the rows that a kernel keeps in local buffers in registers, whole."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, register

MIN_BLOCK = 16
"""The smallest extent of a block that matrix units multiply."""


@register
@dataclass(frozen=True)
class GpuRows(TilePass):
    """for %k in 0..100 { store exp(...), %kept[%k] }  ->  for %k in 0..100 tile 128 { store exp(...), %kept[%k] }

    Every loop that walks a local buffer takes it in one step, of a power of two, so that the buffer is one block value.
    """

    name = "gpu-rows"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        walked = {str(d) for a in table.all if table.roles[a.buffer] == "local" for d in a.index}

        def rule(r: Range, _: Stmt) -> Range:
            if r.var not in walked or not isinstance(r.extent, int):
                return r
            context.applied(self, f"%{r.var}: a row of {r.extent} in one block")
            return r.with_(tile=max(MIN_BLOCK, next_power_of_2(r.extent)))

        return ir.with_body(tile.map_ranges(ir.body, rule))


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()
