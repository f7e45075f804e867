"""Give the loads and the matrix instructions of a product to warps of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_descriptors import matrix_operand_boxes
from compiler.passes.gpu.gpu_rows import gpu_of


@register
@dataclass(frozen=True)
class GpuSpecialize(TilePass):
    """Specialize the warps of a persistent product whose operands are loaded in boxes.

    kernel @f(in %x: f16[4096, 4096] descriptor, ...) warps 8 persistent 148 { ... }
    ->  kernel @f(in %x: f16[4096, 4096] descriptor, ...) warps 8 persistent 148 warp_specialized { ... }

    One warp issues the copies of boxes, one the matrix instructions, and those of the block's results read them from the memory of the matrix
    units: no warp waits for what another does.  Applies where the GPU has warps to spare: Triton adds
    `specialized_warps` of the description, 0 for GPUs that it does not specialize warps for, and all of them must fit at once.
    """

    name = "gpu-specialize"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        gpu, table = gpu_of(context), context.accesses(ir)
        if ir.warp_specialized or not ir.persistent or not gpu.specialized_warps:
            return ir
        operands = {load.buffer for load, _, _ in matrix_operand_boxes(table, gpu)}
        if not operands or not all(ir.param(b).descriptor for b in operands):
            return ir
        warps = ir.warps + gpu.specialized_warps
        if warps * gpu.warp_threads > gpu.resident_threads or not context.may_apply(
            self, f"{gpu.specialized_warps} more warps load and multiply"
        ):
            return ir
        context.propose(self, None)
        return replace(ir, warp_specialized=True)
