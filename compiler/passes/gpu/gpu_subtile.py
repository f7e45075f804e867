"""Compute what follows a matrix product in parts of its columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.cost.gpu_contraction import ProductLoops, product_loops
from compiler.cost.gpu_epilogue import epilogue_of
from compiler.cost.gpu_product import MIN_BLOCK, reads_shared_memory, warp_grid
from compiler.cost.gpu_time import tiled_product
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, Let, Store
from compiler.ir.tile.loop_nest import perfect_parallel_nest
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of


@register
@dataclass(frozen=True)
class GpuSubtile(TilePass):
    """Compute what follows a matrix product in parts of its columns, where its values do not fit the registers of a thread at once.

    kernel warps 8 { parallel %i tile 128 { parallel %j tile 256 { reduce add %s, ...  store %s * erf(%s), %y[%i, %j] } } }
    ->  kernel warps 8 subtiles 2 { ... }

    The other results of a thread wait in their accumulators ("epilogue subtile" of Triton's tutorials).  Applies to products of matrix
    units, whose threads have results in all columns, so that a part moves no data between threads.  The fewest parts that fit are taken.
    """

    name = "gpu-subtile"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        gpu, nest = gpu_of(context), perfect_parallel_nest(ir.body)
        if ir.subtiles or not nest:
            return ir
        product, *rest = nest[-1].body
        contraction, table = contraction_of(product), context.accesses(ir)
        if contraction is None or not all(isinstance(s, (Let, Store)) for s in rest):
            return ir
        loops, found = product_loops(table, contraction), tiled_product(table, ir.warps, contraction)
        if found is None or not isinstance(loops, ProductLoops):
            return ir
        given, block = found
        if not reads_shared_memory(block, given, gpu) or warp_grid(block, gpu)[1] > 1:
            return ir
        sides = frozenset(r.var for r in loops.loops[:2])
        epilogue = epilogue_of(table, contraction.reduction, tuple(rest), sides)
        available = ir.max_registers or gpu.thread_registers
        counts = [1 << k for k in range((block.columns // MIN_BLOCK).bit_length())]
        registers = {n: epilogue.registers(given, block, n, gpu) for n in counts}
        chosen = next((n for n in counts if registers[n] <= available), 1)
        if chosen == 1 or not context.may_apply(
            self,
            f"{registers[1]} registers of {epilogue.live_bytes} bytes for each result, {registers[chosen]} in {chosen} parts",
        ):
            return ir
        return replace(ir, subtiles=chosen)
