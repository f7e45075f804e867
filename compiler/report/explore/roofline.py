"""Ceilings of the roofline: the peak rates of a machine, from its description."""

from __future__ import annotations

from pathlib import Path

from compiler.codegen.llvm.targets import CPUTarget
from compiler.cost.machine import CACHE_LINE_BYTES, GPU
from compiler.options import Options
from compiler.report.explore.page_data import Ceilings
from compiler.runtime.threads import prepare_call
from compiler.target import Target


def ceilings_of(target: Target, options: Options) -> Ceilings | None:
    """Return the ceilings of all threads of a CPU, or of a GPU; None where the machine is not described."""
    machine = target.machine
    if isinstance(machine, GPU):
        return gpu_ceilings(machine, options.machine or f"as described for {target.name}")
    if machine is None or not isinstance(target, CPUTarget):
        return None
    threads = prepare_call()
    cycles = machine.frequency * threads
    vectors = 2 * machine.fma_per_cycle * cycles
    flops = {"f64": vectors * machine.lanes(64), "f32": vectors * machine.lanes(32)}
    flops |= {f"{s.lhs} x {s.rhs}": s.k * vectors * machine.lanes(32) for s in target.matrix_shapes if s.k > 1}
    levels = {"L1": machine.l1, "L2": machine.l2, "L3": machine.l3}
    bandwidths = {name: machine.bytes_per_cycle(size) * cycles for name, size in levels.items()}
    bandwidths["memory"] = CACHE_LINE_BYTES / machine.memory_line_cycles * cycles
    known = (
        f"measured by calibrate, {Path(options.machine).name}" if options.machine else f"as described for {target.name}"
    )
    return Ceilings(f"{known}, {threads} thread{'s' * (threads > 1)}", flops, bandwidths)


def gpu_ceilings(gpu: GPU, origin: str) -> Ceilings:
    """Return the ceilings of a GPU: arithmetic outside matrix units, matrix products by dtype, and the bytes of last cache and memory."""
    rate = gpu.frequency * gpu.multiprocessors
    products = {name: gpu.matrix_flops(name) for name in ("f64", "bf16", "f8e4m3fn", "i8")}
    flops = {"f32": gpu.vector_flops * rate} | {f"{name} products": n * rate for name, n in products.items() if n}
    return Ceilings(origin, flops, {"last cache": gpu.l2_bytes_per_cycle * rate, "memory": gpu.memory_bytes_per_second})
