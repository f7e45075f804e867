"""Limit the registers of a thread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from compiler.cost.gpu_contraction import block_extent
from compiler.cost.gpu_occupancy import BlockResources, resident_blocks
from compiler.cost.gpu_product import product_cost
from compiler.cost.gpu_time import tiled_product
from compiler.cost.machine import GPU
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, Reduce, dim_hint, is_parallel_loop, loads, walk
from compiler.ir.tile.loop_nest import trip_count
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

    The loads of short windows are unrolled and under way together, in registers of their own.  A thread of such a reduction may have as many as
    there are, if there are enough for all blocks of a multiprocessor.
    """

    name = "gpu-registers"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        gpu, table = gpu_of(context), context.accesses(ir)
        found = [tiled_product(table, ir.warps, c) for c in map(contraction_of, walk(ir.body)) if c]
        costs = [product_cost(product, block, gpu, bool(ir.persistent)) for product, block in filter(None, found)]
        if ir.max_registers or ir.warp_specialized or not gpu.limits_registers:
            return ir
        if costs:
            registers, shared = sum(p.resources.registers for p in costs), max(p.resources.shared_bytes for p in costs)
            fitting = resident_blocks(BlockResources(ir.warps, registers, shared), gpu)
            blocks = max(1, min(fitting, ceil(max(p.blocks for p in costs) / gpu.multiprocessors)))
        else:
            blocks = ceil(
                prod(dim_hint(trip_count(s.range)) for s in walk(ir.body) if is_parallel_loop(s)) / gpu.multiprocessors
            )
        share = gpu.register_file // (max(1, blocks * ir.warps) * gpu.warp_threads) // GRANULARITY * GRANULARITY
        limit = min(gpu.thread_registers, share)
        if not costs and (limit < gpu.thread_registers or not has_short_windows(ir, gpu)):
            return ir
        if not context.may_apply(self, f"at most {limit} registers, for {blocks} blocks on a multiprocessor"):
            return ir
        return replace(ir, max_registers=limit)


def has_short_windows(ir: Kernel, gpu: GPU) -> bool:
    """Return True if a reduction loads several elements in loops that are short enough to be unrolled."""
    reductions = [s for s in walk(ir.body) if isinstance(s, Reduce) and loads((s,))]
    return any(all(block_extent(r) <= gpu.window for r in s.ranges) for s in reductions)
