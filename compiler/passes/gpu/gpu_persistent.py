"""Let each program of a matrix product compute one block after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from compiler.cost.gpu_product import product_cost, reads_shared_memory
from compiler.cost.gpu_time import tiled_product
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, Range, dim_hint, map_ranges, stmt_ranges, walk
from compiler.ir.tile.loop_nest import perfect_parallel_nest, trip_count
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.passes.remark import format_seconds


@register
@dataclass(frozen=True)
class GpuPersistent(TilePass):
    """Launch as many programs as run at once, and give each several blocks of a matrix product.

    kernel warps 8 { parallel %i in 0..4096 tile 128 { parallel %j in 0..4096 tile 128 { reduce add %k in 0..4096 tile 64 stages 4 { ... } ... } } }
    ->  kernel warps 8 persistent 132 { ... }

    The loop over blocks and the pipelined loop inside become one (`flatten` of Triton), so that the operands of the next block are
    loaded while the results of this one are stored ("persistent kernel" of CUTLASS and Triton's tutorials).  Applies where a
    nest of parallel loops has one product, of matrix units that read shared memory, and no other loop, and the time of the product
    becomes less by the cost model.
    """

    name = "gpu-persistent"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        gpu, nest = gpu_of(context), perfect_parallel_nest(ir.body)
        loops = [r for s in walk(ir.body) for r in stmt_ranges(s) if s not in nest and not is_one_block(r)]
        if ir.persistent or not nest or len(loops) != 1 or loops[0].stages < 2:
            return ir
        contractions = list(filter(None, map(contraction_of, walk(ir.body))))
        found = tiled_product(context.accesses(ir), ir.warps, contractions[0]) if len(contractions) == 1 else None
        if found is None:
            return ir
        given, block = found
        if not reads_shared_memory(block, given, gpu):
            return ir
        one = product_cost(given, block, gpu)
        fewer = (replace(block, stages=n) for n in range(block.stages, 1, -1))  # results take the place of a stage
        chosen = min(fewer, key=lambda b: product_cost(given, b, gpu, True).seconds)
        several = product_cost(given, chosen, gpu, True)
        programs = gpu.multiprocessors * several.resident
        if several.seconds >= one.seconds or programs >= prod(dim_hint(trip_count(f.range)) for f in nest):
            return ir
        times = f"{format_seconds(several.seconds)} instead of {format_seconds(one.seconds)}"
        if not context.may_apply(self, f"{programs} programs for {one.blocks} blocks: {times}"):
            return ir
        context.propose(self, None)
        body = map_ranges(ir.body, lambda r, _: r.with_(stages=chosen.stages) if r == loops[0] else r)
        return replace(ir, body=body, persistent=programs)


def is_one_block(r: Range) -> bool:
    """Return True if one tile covers a loop."""
    return isinstance(r.extent, int) and r.extent <= r.tile
