"""The Triton sources of a program's kernels, or all reasons why there are none."""

from __future__ import annotations

from compiler.codegen.triton.emit import emit_triton
from compiler.codegen.triton.triton_names import TritonError
from compiler.errors import DynamicShapeError
from compiler.ir.tile.digest import kernel_digest
from compiler.ir.tile.dynamic_sizes import program_dynamic_sizes
from compiler.ir.tile.program import Program


def emit_program(program: Program) -> dict[str, str]:
    """Return the source of every kernel by name; equal kernels share one.

    Raises TritonError with all kernels that cannot be expressed, DynamicShapeError if static sizes may help.
    """
    sources: dict[str, str] = {}
    by_digest: dict[str, str] = {}
    refusals: list[str] = []
    for name, kernel in program.kernels.items():
        digest = kernel_digest(kernel)
        try:
            if digest not in by_digest:
                by_digest[digest] = emit_triton(kernel)
            sources[name] = by_digest[digest]
        except TritonError as error:
            refusals.append(f"  @{name}{kernel_origin(program, name)}: {error}")
    if refusals:
        error_type = DynamicShapeError if program_dynamic_sizes(program) else TritonError
        raise error_type("\n".join([f"{len(refusals)} kernel(s) cannot be expressed in Triton:", *refusals]))
    return sources


def kernel_origin(program: Program, kernel: str) -> str:
    """Return the nodes that a kernel computes, in words; "" if they are not known."""
    nodes = dict.fromkeys(step.node for step in program.launches if step.kernel == kernel and step.node)
    return f" (for {', '.join(nodes)})" if nodes else ""
