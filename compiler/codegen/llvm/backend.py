"""The LLVM backend: CPUs, through llvmlite."""

from __future__ import annotations

from compiler.codegen.backend import Backend, Pipelines
from compiler.codegen.listing import Listing
from compiler.codegen.llvm.debug_info import DebugInfo, split_assembly, split_llvm, transfer_lines
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.llvm.object_file import emit_assembly
from compiler.codegen.llvm.targets import CPU_TARGETS, CPUTarget, host_target
from compiler.ir.text.statement_lines import StatementLines
from compiler.ir.tile.kernel import Kernel

PROGRAM_PASSES = "lower-async-copies,update-in-place,compute-at,delinearize,split-constants,layout,merge-kernels"
"""All kernels together: update buffers in place, move copies into their only consumer, choose the layouts of intermediates.

Asynchronous copies become loops, addresses lose their divisions, constants are split, and equal kernels are shared."""

UNFUSED_PROGRAM_PASSES = "lower-async-copies,update-in-place,delinearize,layout,merge-kernels"
"""The same where every op keeps its kernel."""

TILE_PASSES = (
    "tighten-reductions,fuse-loops,online-softmax,defer-division,reduce-columns,distribute-bindings,collapse,reorder,collapse,"
    "dot-products,cache-blocking,fuse-siblings,cache-operand,transpose-scans,vectorize,unroll-and-jam,jam-reductions,distribute-sums,"
    "tile,fuse-rows,hoist-operand,commute-differences,pack,unroll,prefetch,nontemporal-stores,split-prologue,split-epilogue,"
    "limit-code-size,interleave-stores,cascade-sums,peel,parallelize,expand-divisions,rows-in-results,expand-math"
)
"""Scalar loops to tiles: fuse and order loops, choose lanes, register tiles and layouts, split remainders, use threads."""

FAST_EDITS = "-layout,+layout{max-sweeps=1}@after:delinearize"
"""Edits of the pipeline with which it takes less time."""


def list_llvm(kernel: Kernel, target: CPUTarget) -> Listing:
    """Return the LLVM IR of a kernel."""
    return Listing.located(*split_llvm(emit_kernel(kernel, target, DebugInfo(StatementLines.of(kernel)))))


def list_assembly(kernel: Kernel, target: CPUTarget) -> Listing:
    """Return the assembly of a kernel; its lines take a second compilation."""
    plain = emit_assembly(emit_kernel(kernel, target), target)

    def locate() -> tuple[int, ...]:
        located = emit_assembly(emit_kernel(kernel, target, DebugInfo(StatementLines.of(kernel))), target)
        return transfer_lines(*split_assembly(located), plain)

    return Listing(plain, locate)


BACKEND = Backend(
    name="llvm",
    targets=CPU_TARGETS,
    pipelines=Pipelines(
        program=f"{PROGRAM_PASSES},{TILE_PASSES}",
        unfused_program=f"{UNFUSED_PROGRAM_PASSES},{TILE_PASSES}",
        fast_program=f"{PROGRAM_PASSES},{TILE_PASSES},{FAST_EDITS}",
        legalization="peel,expand-math",
    ),
    listings={"llvm": list_llvm, "assembly": list_assembly},
    host=host_target,
)
