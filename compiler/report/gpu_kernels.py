"""Kernels compiled for a GPU: registers, shared memory and occupancy, predicted time and roofline of each."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from compiler.codegen.triton.loader import OfflineKernel
from compiler.codegen.triton.targets import GPUTarget
from compiler.cost.gpu_occupancy import BlockResources, occupancy
from compiler.cost.gpu_time import gpu_predicted_seconds, gpu_roofline_seconds
from compiler.cost.machine import GPU
from compiler.ir.tile.program import Program
from compiler.passes.remark import format_seconds
from compiler.report.render import table

NUMBERS = (
    "warps",
    "registers",
    "spills, bytes",
    "shared, KiB",
    "occupancy",
    "16-byte accesses",
    "matrix instructions",
    "predicted",
    "roofline",
)


def gpu_kernel_table(kernels: Mapping[str, OfflineKernel], program: Program, target: GPUTarget) -> Table:
    """Return what each kernel takes of a multiprocessor of the target, and its time by the cost model under the size hints."""
    gpu = target.machine
    assert isinstance(gpu, GPU)
    rows = table(f"{len(kernels)} kernels for {target.name}", ["kernel"], NUMBERS)
    for name, compiled in kernels.items():
        r, kernel = compiled.resources, program.kernels[name]
        resident = occupancy(BlockResources(r.warps, max(1, r.registers), r.shared_bytes), gpu)
        seconds = (gpu_predicted_seconds(kernel, gpu), gpu_roofline_seconds(kernel, gpu))
        rows.add_row(
            name, *map(str, (r.warps, r.registers, r.spilled_bytes, r.shared_bytes >> 10)), f"{resident:.0%}",
            f"{r.wide_accesses} of {r.global_accesses}", str(r.matrix_instructions), *map(format_seconds, seconds),
        )  # fmt: skip
    return rows
