"""The LLVM backend: CPUs, through llvmlite."""

from __future__ import annotations

from compiler.codegen.backend import Backend, Pipelines
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPU_TARGETS, CPUTarget, host_target
from compiler.ir.tile.kernel import Kernel

PROGRAM_PASSES = "lower-async-copies,update-in-place,compute-at,delinearize,layout"
"""Make loops of asynchronous copies, update buffers in place, move copies into their only consumer, remove divisions from addresses, choose the layouts of intermediate tensors."""

UNFUSED_PROGRAM_PASSES = "lower-async-copies,update-in-place,delinearize,layout"
"""The same where every op keeps its kernel."""

TILE_PASSES = (
    "tighten-reductions,fuse-loops,online-softmax,collapse,reorder,dot-products,cache-blocking,fuse-siblings,cache-operand,"
    "vectorize,unroll-and-jam,tile,hoist-operand,pack,unroll,prefetch,nontemporal-stores,split-epilogue,peel,parallelize,expand-math"
)
"""Scalar loops to tiles: fuse, block and order loops, choose lanes, register tiles and layouts, split remainders, share out threads."""


def print_assembly(kernel: Kernel, target: CPUTarget) -> str:
    """Return the assembly text of a kernel."""
    return emit_assembly(emit_kernel(kernel, target), target)


BACKEND = Backend(
    name="llvm",
    targets=CPU_TARGETS,
    pipelines=Pipelines(
        program=f"{PROGRAM_PASSES},{TILE_PASSES}",
        unfused_program=f"{UNFUSED_PROGRAM_PASSES},{TILE_PASSES}",
        legalization="peel,expand-math",
    ),
    printers={"llvm": emit_kernel, "assembly": print_assembly},
    host=host_target,
)
