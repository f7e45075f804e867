"""The Triton sources of a program's kernels, or all reasons why there are none."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.analysis.kernel_origin import KernelOrigin, merge_origins
from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.triton_names import RefusedKernelsError, TritonError
from compiler.errors import DynamicShapeError, UnsupportedOp
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.dynamic_sizes import program_dynamic_sizes
from compiler.ir.tile.program import Program


def emit_program(program: Program, origins: Mapping[str, KernelOrigin] | None = None) -> dict[str, str]:
    """Return the source of every kernel by name; equal kernels share one.

    Raises RefusedKernelsError with all kernels that cannot be expressed, and where they come from by `origins` of their nodes.
    DynamicShapeError instead if static sizes may help.
    """
    sources: dict[str, str] = {}
    by_digest: dict[str, str] = {}
    refused: list[UnsupportedOp] = []
    for name, kernel in program.kernels.items():
        digest = kernel_digest(kernel)
        try:
            if digest not in by_digest:
                by_digest[digest] = emit_triton(kernel)
            sources[name] = by_digest[digest]
        except TritonError as error:
            origin = kernel_origin(program, name, origins or {})
            ops = f" ({', '.join(dict.fromkeys(origin.ops))})" if origin.ops else ""
            refused.append(UnsupportedOp(f"@{name}{ops}", str(error), origin.place))
    if refused:
        problem = RefusedKernelsError(refused)
        raise DynamicShapeError(str(problem)) if program_dynamic_sizes(program) else problem
    return sources


def kernel_origin(program: Program, kernel: str, origins: Mapping[str, KernelOrigin]) -> KernelOrigin:
    """Return the origin of a kernel by those of the nodes that it is launched for; an empty one if they are not known."""
    found = [origins[s.node] for s in program.launches if s.kernel == kernel and s.node in origins]
    return merge_origins(found) if found else KernelOrigin()
