"""The Triton backend: GPUs."""

from __future__ import annotations

from compiler.codegen.backend import GRAPH_PASSES, UNFUSED_GRAPH_PASSES, Backend, Pipelines
from compiler.codegen.listing import Listing
from compiler.codegen.triton.emit import triton_listing
from compiler.codegen.triton.targets import GPU_TARGETS, GPUTarget
from compiler.ir.tile.kernel import Kernel

GPU_PASSES = (
    "tf32-products{alone=true},lower-async-copies,delinearize{contractions-only=true},tighten-reductions,split-kernels,gpu-align,gpu-pack,gpu-split,sink-bindings,fuse-loops,online-softmax,collapse,tf32-products,"
    "implicit-product,round-factors,gpu-rows,gpu-dot,gpu-order,gpu-persistent,gpu-descriptors,gpu-specialize,gpu-blocks,gpu-registers,gpu-subtile"
)
"""Scalar loops to blocks: one kernel for each grid, enough programs, then block shapes of local buffers, of contractions, of everything else."""

GPU_UNFUSED_GRAPH_PASSES = f"{UNFUSED_GRAPH_PASSES},-widen-operands,-scale-rows"
"""Blocks convert operands once."""

GPU_GRAPH_PASSES = f"{GRAPH_PASSES},-widen-operands,-scale-rows,-two-level-argmax,-two-level-reduction,-lower-to-col2im,-winograd,-eliminate-padding"
"""Multiplications are cheap in matrix units, and a kernel for each part of an image costs a launch (masks reach padding instead)."""


def list_triton(kernel: Kernel, target: GPUTarget) -> Listing:
    """Return the Triton module of a kernel; the same for every GPU."""
    return triton_listing(kernel)


BACKEND = Backend(
    name="triton",
    targets=GPU_TARGETS,
    pipelines=Pipelines(
        graph=GPU_GRAPH_PASSES, program=GPU_PASSES, unfused_graph=GPU_UNFUSED_GRAPH_PASSES, unfused_program=GPU_PASSES
    ),
    listings={"triton": list_triton},
)
