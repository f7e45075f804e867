"""Store constant operands of products in the order in which blocks of them are read."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Store a constant with the block of a product that a step reads as its last dimensions.

    const %w: f32[3072, 768] read as %w[%j, %k] with columns %j and depth %k  ->  const %w: f32[3072, 768]{1, 0}

    Where no matrix unit multiplies, neighbours are rows or columns of the product: the lanes of a warp read those together in
    shared memory, and elements along the sum would lie in the same bank (bank conflicts of the CUDA C++ programming guide).
    Matrix units read along the sum.  Only types change, and constants are packed when the program is built.  Applies if all
    reads of a constant prefer the same order.
    """

    name = "gpu-pack"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = context.accesses(ir)
        ranks, params = loop_ranks(table, gpu_of(context)), []
        for p in ir.params:
            layout = self.packed_layout(table, p.name, ranks) if p.role == "const" and not p.type.layout else None
            if layout is not None and context.may_apply(self, f"%{p.name}: {p.type} stored as {layout}"):
                p = replace(p, type=replace(p.type, layout=layout))
            params.append(p)
        return replace(ir, params=tuple(params))

    def packed_layout(self, table: Accesses, name: str, ranks: Mapping[str, int]) -> Layout | None:
        """Return the layout that all reads of a constant prefer, or None."""
        layouts = {self.preferred_layout(a, ranks) for a in table.all if a.buffer == name}
        return layouts.pop() if len(layouts) == 1 else None

    def preferred_layout(self, a: Access, ranks: Mapping[str, int]) -> Layout | None:
        """Return the layout with the dimensions in the order of their loops' ranks; None if it is that already."""
        order = [max((ranks.get(v, 0) for v in variables(d)), default=0) for d in a.index]
        if sum(rank > 0 for rank in order) != 2:
            return None
        dims = sorted(range(len(order)), key=lambda k: order[k])
        return None if dims == sorted(dims) else Layout(tuple(map(PhysicalDim, dims)))


def loop_ranks(table: Accesses, gpu: GPU) -> dict[str, int]:
    """Return 1 and 2 for the loops of products: 2 for those whose elements are to be neighbours in constants."""
    ranks: dict[str, int] = {}
    for found in (product_loops(table, c) for c in map(contraction_of, walk(table.kernel.body)) if c):
        if isinstance(found, ProductLoops):
            row, column, depth = (r.var for r in found.loops)
            along_sides = multiplies_in_registers(found.product, gpu)
            ranks |= {row: 1 + along_sides, column: 1 + along_sides, depth: 2 - along_sides}
    return ranks
