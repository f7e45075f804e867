"""The Triton backend: GPUs."""

from __future__ import annotations

from compiler.codegen.backend import Backend, Pipelines
from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.targets import GPU_TARGETS, GPUTarget
from compiler.ir.tile.kernel import Kernel

GPU_PASSES = "lower-async-copies,delinearize,tighten-reductions,split-kernels,collapse,gpu-rows,gpu-dot,gpu-blocks"
"""Scalar loops to blocks: one kernel for each grid, then block shapes of local buffers, of contractions, and of everything else."""


def print_triton(kernel: Kernel, target: GPUTarget) -> str:
    """Return the Triton module of a kernel; the same for every GPU."""
    return emit_triton(kernel)


BACKEND = Backend(
    name="triton",
    targets=GPU_TARGETS,
    pipelines=Pipelines(program=GPU_PASSES, unfused_program=GPU_PASSES),
    printers={"triton": print_triton},
)
