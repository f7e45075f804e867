"""Time of a scheduled kernel on a GPU, estimated from its Tile IR, and the roofline bound."""

from __future__ import annotations

from math import prod

from compiler.analysis.accesses import Accesses
from compiler.cost.estimates import count_bytes, count_flops
from compiler.cost.gpu_contraction import ProductLoops, product_loops
from compiler.cost.gpu_product import MatrixProduct, ProductBlock, product_cost
from compiler.cost.machine import GPU
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import Kernel, dim_hint, is_parallel_loop, iteration_count_hint, walk
from compiler.ir.tile.loop_nest import trip_count
from compiler.target import MATRIX_DTYPES


def gpu_roofline_seconds(kernel: Kernel, gpu: GPU) -> float:
    """Return the seconds that a kernel takes at least, for its arithmetic or its bytes."""
    return max(arithmetic_seconds(kernel, gpu), memory_seconds(kernel, gpu))


def memory_seconds(kernel: Kernel, gpu: GPU) -> float:
    """Return the seconds in which memory moves the bytes of a kernel."""
    return gpu.traffic_seconds(count_bytes(kernel))


def arithmetic_seconds(kernel: Kernel, gpu: GPU) -> float:
    """Return the seconds of a kernel's products in matrix units and of its other arithmetic, at peak rates."""
    table = Accesses(kernel)
    products = dict.fromkeys((gpu.vector_flops,), 0.0)
    for c in map(contraction_of, walk(kernel.body)):
        operands = c.matrix_operands(MATRIX_DTYPES) if c else None
        if c is not None and operands is not None:
            rate = gpu.matrix_flops("tf32" if c.is_tf32 else operands[0].dtype.name) or gpu.vector_flops
            loops = (*table.loops[c.reduction.ranges[0].var][2], *c.reduction.ranges)
            products[rate] = products.get(rate, 0.0) + 2 * iteration_count_hint(loops)
    others = max(0.0, count_flops(kernel) - sum(products.values()))
    cycles = others / gpu.vector_flops + sum(n / rate for rate, n in products.items())
    return gpu.seconds(cycles / gpu.multiprocessors)


def gpu_predicted_seconds(kernel: Kernel, gpu: GPU) -> float:
    """Return the estimated seconds of a scheduled kernel: its products by their blocks, or its bytes with idle multiprocessors."""
    table = Accesses(kernel)
    contractions = filter(None, map(contraction_of, walk(kernel.body)))
    products = sum(contraction_seconds(table, kernel, c, gpu) for c in contractions)
    loops = [s.range for s in walk(kernel.body) if is_parallel_loop(s)]
    programs = prod(dim_hint(trip_count(r)) for r in loops)
    memory = memory_seconds(kernel, gpu) * gpu.idle_factor(programs)
    return max(products, memory, gpu_roofline_seconds(kernel, gpu))


def contraction_seconds(table: Accesses, kernel: Kernel, c: Contraction, gpu: GPU) -> float:
    """Return the seconds of a contraction in the blocks that it has; 0 if it is no matrix product."""
    found = tiled_product(table, kernel.warps, c)
    seconds = product_cost(*found, gpu, bool(kernel.persistent)).seconds if found else 0.0
    return seconds if seconds < float("inf") else 0.0


def tiled_product(table: Accesses, warps: int, c: Contraction) -> tuple[MatrixProduct, ProductBlock] | None:
    """Return a contraction as a matrix product and the blocks that it has; None if it is none or has no blocks."""
    found = product_loops(table, c)
    if not isinstance(found, ProductLoops) or not all(r.tile > 1 for r in found.loops):
        return None
    pipelined = found.pipelined_loop(found.loops[-1].tile)
    rows, columns, depth = (r.tile for r in found.loops)
    return found.product, ProductBlock(rows, columns, depth, warps, pipelined.stages if pipelined else 1)
