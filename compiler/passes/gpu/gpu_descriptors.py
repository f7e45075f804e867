"""Load the blocks of matrix operands as boxes of tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, prod

from compiler.analysis.accesses import Accesses
from compiler.analysis.index_width import has_long_indices
from compiler.analysis.tensor_box import ALIGNMENT, TensorBox, tensor_box
from compiler.cost.gpu_contraction import is_parallel, mean_extent
from compiler.cost.gpu_product import reads_shared_memory
from compiler.cost.gpu_time import tiled_product
from compiler.cost.machine import GPU
from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_expr import mod, product
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, Range, dim_hint, walk
from compiler.ir.tile.loop_nest import trip_count
from compiler.ir.tile.program import OpaqueCall, Program, walk_steps
from compiler.passes.base import Context, ProgramPass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.target import MATRIX_DTYPES


@register
@dataclass(frozen=True)
class GpuDescriptors(ProgramPass):
    """Give operands of matrix products tensor descriptors, by which a unit of the GPU copies blocks (TMA).

    kernel @f(in %x: f16[4096, 4096], ...) { ... reduce add %k tile 64 { x[%i, %k] * w[%j, %k] } }
    ->  kernel @f(in %x: f16[4096, 4096] descriptor, ...) { ... }

    Applies where matrix units read shared memory, every block of an operand is a box of the buffer, each launch passes an aligned address,
    and the threads of a program would take more cycles to copy the blocks than to make the descriptor: it is written to memory and read back
    behind a fence (`fence.proxy.tensormap` of the PTX ISA), which takes at least `load_latency`.  Elementwise operands keep their loads: descriptors
    make kernels that move data slower (pytorch#187175).
    """

    name = "gpu-descriptors"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        gpu, kernels = gpu_of(context), dict(ir.kernels)
        short = {name: k for name, k in ir.kernels.items() if not has_long_indices(k)} if gpu.copies_boxes else {}
        for name, kernel in short.items():
            unaligned = {
                p.name
                for launch in ir.launches
                if launch.kernel == name
                for p, argument in zip(kernel.params, launch.arguments, strict=True)
                if not is_aligned_buffer(ir, argument)
            }
            cycles = {b: n for b, n in copy_cycles(kernel, gpu).items() if b not in unaligned}
            chosen = {b for b, n in cycles.items() if n > gpu.load_latency and not kernel.param(b).descriptor}
            operands = ", ".join(f"%{b} ({cycles[b]:.0f} cycles)" for b in sorted(chosen))
            if chosen and context.may_apply(self, f"boxes of {operands} instead of copies by threads", name):
                params = tuple(replace(p, descriptor=p.descriptor or p.name in chosen) for p in kernel.params)
                kernels[name] = replace(kernel, params=params)
        if kernels == ir.kernels:
            return ir
        context.propose(self, None)
        return replace(ir, kernels=kernels)


def is_aligned_buffer(program: Program, name: str) -> bool:
    """Return True if a buffer is not made by PyTorch nor updated in place, and views of it begin at multiples of `ALIGNMENT`."""
    while name in program.views:
        view = program.views[name]
        entry = product(program.buffers[view.buffer].shape[1:]) * program.buffers[view.buffer].dtype.bytes
        if mod(view.index * entry, ALIGNMENT) != 0:
            return False
        name = view.buffer
    results = {b for s in walk_steps(program.steps) if isinstance(s, OpaqueCall) for b in s.results}
    return name not in results and not (name in program.inputs and name in program.outputs)


def copy_cycles(kernel: Kernel, gpu: GPU) -> dict[str, float]:
    """Return the operands of products that are loaded in boxes only, and the cycles in which threads of a program copy them.

    Each access of a warp takes one cycle.  A descriptor for each shape of boxes is paid for by the loads of that shape.
    """
    table, cycles = Accesses(kernel), defaultdict[str, float](float)
    blocks = prod(dim_hint(trip_count(r)) for r, _, _ in table.loops.values() if is_parallel(table, r))
    programs = min(kernel.persistent or blocks, blocks)
    for load, box, loops in matrix_operand_boxes(table, gpu):
        size = prod(box.extents) * table.types[load.buffer].dtype.bytes if box else -inf
        steps = prod(mean_trips(table, r) for r in loops) / max(1, programs)
        cycles[load.buffer] += steps * size / (gpu.access_bytes * gpu.warp_threads)
    return dict(cycles)


def mean_trips(table: Accesses, r: Range) -> int:
    """Return the iterations of a loop over blocks, in the mean where outer loops bound it."""
    return -(-mean_extent(table, r) // max(1, r.tile))


def matrix_operand_boxes(table: Accesses, gpu: GPU) -> Iterator[tuple[Load, TensorBox | None, tuple[Range, ...]]]:
    """Yield each load that a product in shared memory makes of a buffer that is only read: its box, and the loops around it."""
    for c in filter(None, map(contraction_of, walk(table.kernel.body))):
        found, operands = tiled_product(table, table.kernel.warps, c), c.matrix_operands(MATRIX_DTYPES)
        if operands is None or found is None or not reads_shared_memory(found[1], found[0], gpu):
            continue
        loops = (*table.loops[c.reduction.ranges[0].var][2], *c.reduction.ranges)
        for load in (x for e in operands for x in e.loads if table.roles[x.buffer] in ("in", "const")):
            yield load, None if load.mask else tensor_box(load.index, table.types[load.buffer], loops), loops
