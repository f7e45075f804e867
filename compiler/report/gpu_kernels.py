"""Kernels of a program for a GPU: registers, shared memory and occupancy, predicted time and roofline of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from rich.table import Table

from compiler.codegen.triton.loader import OfflineKernel, compile_sources
from compiler.codegen.triton.program_sources import emit_program
from compiler.codegen.triton.resources import KernelResources
from compiler.codegen.triton.targets import GPUTarget, is_interpreted
from compiler.cost.gpu_occupancy import BlockResources, occupancy
from compiler.cost.gpu_time import gpu_predicted_seconds, gpu_roofline_seconds
from compiler.cost.machine import GPU
from compiler.ir.tile.program import Program
from compiler.passes.remark import format_seconds
from compiler.report.render import table

RESOURCES = (
    "warps",
    "registers",
    "spills, bytes",
    "shared, KiB",
    "occupancy",
    "16-byte accesses",
    "matrix instructions",
)
"""Columns that are read from compiled code."""

TIMES = ("predicted", "roofline")
"""Columns of the cost model."""


@dataclass(frozen=True)
class GPUKernelReport:
    """A kernel on a GPU: its resources, and the seconds of a launch by the cost model and at least, under the size hints.

    `resources` are None where Triton interprets kernels, or is not installed.
    """

    name: str
    gpu: GPU
    resources: KernelResources | None
    predicted: float
    roofline: float

    @property
    def occupancy(self) -> float:
        """Share of a multiprocessor's threads that are resident, limited by registers and shared memory; 0 if not known."""
        r = self.resources
        return occupancy(BlockResources(r.warps, max(1, r.registers), r.shared_bytes), self.gpu) if r else 0.0

    @property
    def facts(self) -> dict[str, str]:
        """Return what is known of the compiled code as text, by the names in `RESOURCES`."""
        r = self.resources
        if r is None:
            return {}
        numbers = (r.warps, r.registers, r.spilled_bytes, r.shared_bytes >> 10)
        accesses = f"{r.wide_accesses} of {r.global_accesses}"
        values = (*map(str, numbers), f"{self.occupancy:.0%}", accesses, str(r.matrix_instructions))
        return dict(zip(RESOURCES, values, strict=True))


def gpu_kernel_reports(
    program: Program, target: GPUTarget, compiled: Mapping[str, OfflineKernel] | None = None
) -> list[GPUKernelReport]:
    """Return a report of each kernel of a scheduled program; kernels are compiled unless they are given."""
    if compiled is None:
        compiles = find_spec("triton") is not None and not is_interpreted()
        compiled = compile_sources(emit_program(program), target) if compiles else {}
    gpu = target.machine
    assert isinstance(gpu, GPU)
    return [
        GPUKernelReport(
            name, gpu, compiled[name].resources if name in compiled else None,
            gpu_predicted_seconds(kernel, gpu), gpu_roofline_seconds(kernel, gpu),
        )
        for name, kernel in program.kernels.items()
    ]  # fmt: skip


def gpu_kernel_table(kernels: Sequence[GPUKernelReport], target: str) -> Table:
    """Return a row for each kernel; columns of compiled code are left out where there is none."""
    heads = RESOURCES if any(k.resources for k in kernels) else ()
    rows = table(f"{len(kernels)} kernels for {target}", ["kernel"], [*heads, *TIMES])
    for k in kernels:
        seconds = map(format_seconds, (k.predicted, k.roofline))
        rows.add_row(k.name, *(k.facts.get(head, "") for head in heads), *seconds)
    return rows
