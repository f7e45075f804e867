"""Store constant operands of products in the order in which threads read them from shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.gpu_contraction import ProductLoops, product_loops
from compiler.cost.gpu_product import multiplies_in_registers
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, walk
from compiler.ir.types import Layout, PhysicalDim
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of


@register
@dataclass(frozen=True)
class GpuPack(TilePass):
    """Store a constant with the columns of a product as neighbours, where no matrix unit multiplies it.

    const %w: f32[3072, 768] read as %w[%j, %k] with columns %j  ->  const %w: f32[3072, 768]{1, 0}

    The lanes of a warp then read neighbours in shared memory; rows along the sum would begin in the same bank for all of
    them, which are served one after another (bank conflicts of the CUDA C++ programming guide).  Only types change, and
    constants are packed when the program is built.  Applies if all reads of a constant prefer the same order.
    """

    name = "gpu-pack"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table, gpu = context.accesses(ir), gpu_of(context)
        columns = column_loops(table, gpu)
        params = []
        for p in ir.params:
            layout = self.packed_layout(table, p.name, columns) if p.role == "const" and not p.type.layout else None
            if layout is not None and context.may_apply(self, f"%{p.name}: {p.type} stored as {layout}"):
                p = replace(p, type=replace(p.type, layout=layout))
            params.append(p)
        return replace(ir, params=tuple(params))

    def packed_layout(self, table: Accesses, name: str, columns: set[str]) -> Layout | None:
        """Return the layout that all reads of a constant prefer, or None."""
        layouts = {self.preferred_layout(a, columns) for a in table.all if a.buffer == name}
        return layouts.pop() if len(layouts) == 1 else None

    def preferred_layout(self, a: Access, columns: set[str]) -> Layout | None:
        """Return the layout with the dimension of a loop over columns last; None if it is the last, or if there is none."""
        dims = [k for k, d in enumerate(a.index) if variables(d) & columns]
        if len(dims) != 1 or dims[0] == len(a.index) - 1:
            return None
        others = (k for k in range(len(a.index)) if k != dims[0])
        return Layout(tuple(map(PhysicalDim, (*others, dims[0]))))


def column_loops(table: Accesses, gpu: GPU) -> set[str]:
    """Return the loops over the columns of products that are multiplied in registers."""
    contractions = filter(None, map(contraction_of, walk(table.kernel.body)))
    found = (product_loops(table, c) for c in contractions)
    return {f.loops[1].var for f in found if isinstance(f, ProductLoops) and multiplies_in_registers(f.product, gpu)}
