"""Kernel fission: one kernel for each outermost loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ir.tile.kernel import For, Kernel, Param, loaded_buffers, stored_buffers
from compiler.ir.tile.program import Launch, Program, Step, expand_steps
from compiler.passes.base import Context, ProgramPass, register


@register
@dataclass(frozen=True)
class SplitKernels(ProgramPass):
    """Split a kernel into one kernel for each outermost loop.

    kernel { parallel %i { ... }  parallel %j { ... } }  ->  kernel { parallel %i { ... } }  kernel { parallel %j { ... } }

    For targets that launch a kernel on one grid of programs: each program would run the serial loops next to a parallel
    one.  Kernels with a statement other than loops at the top, such as a local buffer, are not split.
    """

    name = "split-kernels"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        parts = {name: split_kernel(kernel) for name, kernel in ir.kernels.items()}
        if all(len(p) == 1 for p in parts.values()):
            return ir

        def rule(step: Step) -> Iterator[Step]:
            if not isinstance(step, Launch):
                yield step
                return
            given = dict(zip((p.name for p in ir.kernels[step.kernel].params), step.arguments, strict=True))
            for kernel in parts[step.kernel]:
                yield replace(step, kernel=kernel.name, arguments=tuple(given[p.name] for p in kernel.params))

        return replace(ir, kernels={k.name: k for p in parts.values() for k in p}, steps=expand_steps(ir.steps, rule))


def split_kernel(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernel, or one for each of its outermost loops."""
    loops = [s for s in kernel.body if isinstance(s, For)]
    if len(loops) < 2 or len(loops) < len(kernel.body) or not any(s.parallel for s in loops):
        return (kernel,)
    return tuple(
        Kernel(f"{kernel.name}_part{k}", used_params(kernel.params, loop), (loop,)) for k, loop in enumerate(loops)
    )


def used_params(params: tuple[Param, ...], loop: For) -> tuple[Param, ...]:
    """Return the parameters that a loop uses; those that it only reads become inputs."""
    read, written = loaded_buffers((loop,)), stored_buffers((loop,))
    roles = {p.name: p.role if p.name in written or p.role == "const" else "in" for p in params}
    return tuple(replace(p, role=roles[p.name]) for p in params if p.name in read | written)
