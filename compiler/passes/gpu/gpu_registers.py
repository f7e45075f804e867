"""Limit the registers of a thread of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from compiler.cost.gpu_occupancy import BlockResources, resident_blocks
from compiler.cost.gpu_product import product_cost
from compiler.cost.gpu_time import tiled_product
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, walk
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of

GRANULARITY = 8
"""Registers of a thread are allocated in multiples of this number (CUDA occupancy calculator)."""


@register
@dataclass(frozen=True)
class GpuRegisters(TilePass):
    """Give a thread of a product all registers that the blocks beside it leave.

    kernel @f(...) warps 4 { ... }  ->  kernel @f(...) warps 4 max_registers 168 { ... }

    `gpu-dot` has chosen the block for so many of its kind on a multiprocessor, of which a small product has fewer.  Without a limit, ptxas
    spills registers to fit one more block than that.  Several products, as of attention, hold their results at once.  Specialized warps
    divide their registers themselves.
    """

    name = "gpu-registers"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        gpu, table = gpu_of(context), context.accesses(ir)
        found = [tiled_product(table, ir.warps, c) for c in map(contraction_of, walk(ir.body)) if c]
        costs = [product_cost(product, block, gpu, bool(ir.persistent)) for product, block in filter(None, found)]
        if ir.max_registers or ir.warp_specialized or not costs or not gpu.limits_registers:
            return ir
        registers, shared = sum(p.resources.registers for p in costs), max(p.resources.shared_bytes for p in costs)
        fitting = resident_blocks(BlockResources(ir.warps, registers, shared), gpu)
        blocks = max(1, min(fitting, ceil(max(p.blocks for p in costs) / gpu.multiprocessors)))
        share = gpu.register_file // (blocks * ir.warps * gpu.warp_threads) // GRANULARITY * GRANULARITY
        limit = min(gpu.thread_registers, share)
        if not context.may_apply(self, f"at most {limit} registers, for {blocks} blocks on a multiprocessor"):
            return ir
        return replace(ir, max_registers=limit)
