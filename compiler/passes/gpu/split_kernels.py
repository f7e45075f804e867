"""Kernel fission: one kernel for each outermost loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ir.tile.kernel import (
    Block,
    BoundsCheck,
    For,
    Kernel,
    Let,
    Param,
    Reduce,
    Store,
    is_parallel_loop,
    loaded_buffers,
    stored_buffers,
)
from compiler.ir.tile.program import Launch, Program, Step, expand_launches
from compiler.ir.tile.uses import used_names
from compiler.passes.base import Context, ProgramPass, register


@register
@dataclass(frozen=True)
class SplitKernels(ProgramPass):
    """Split a kernel into one kernel for each outermost loop, and for each store beside them.

    kernel { parallel %i { ... }  parallel %j { ... } }  ->  kernel { parallel %i { ... } }  kernel { parallel %j { ... } }

    For targets that launch a kernel on one grid of programs: each program would run the serial loops next to a parallel
    one.  Values that are bound at the top are computed in each kernel that uses them, if they read nothing that is written.
    Kernels with other statements at the top, such as a local buffer, are not split.
    """

    name = "split-kernels"
    exact = True

    def run(self, ir: Program, context: Context) -> Program:
        parts = {name: split_kernel(kernel) for name, kernel in ir.kernels.items()}
        for name, split in parts.items():
            message = f"@{name} split into {len(split)} kernels"
            if len(split) > 1 and not context.may_apply(self, message, required=True, remark=False):
                parts[name] = (ir.kernels[name],)
        if all(len(p) == 1 for p in parts.values()):
            return ir

        def rule(step: Launch) -> Iterator[Step]:
            given = dict(zip((p.name for p in ir.kernels[step.kernel].params), step.arguments, strict=True))
            for kernel in parts[step.kernel]:
                yield replace(step, kernel=kernel.name, arguments=tuple(given[p.name] for p in kernel.params))

        return replace(
            ir, kernels={k.name: k for p in parts.values() for k in p}, steps=expand_launches(ir.steps, rule)
        )


def split_kernel(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the kernel, or one for each of its outermost loops and stores."""
    body, written = kernel.body, stored_buffers(kernel.body)
    writers = [k for k, s in enumerate(body) if isinstance(s, (For, Store))]
    between = [s for s in body if not isinstance(s, (For, Store))]
    is_divisible = isinstance(body[-1], (For, Store)) and all(
        isinstance(s, (Let, Reduce, BoundsCheck)) for s in between
    )
    has_parallel_loop = any(map(is_parallel_loop, body))
    if len(writers) < 2 or not has_parallel_loop or not is_divisible or loaded_buffers(tuple(between)) & written:
        return (kernel,)
    firsts = [0, *(k + 1 for k in writers)]
    parts = (with_bindings(body, first, k) for first, k in zip(firsts, writers, strict=False))
    return tuple(
        Kernel(f"{kernel.name}_part{k}", used_params(kernel.params, part), part) for k, part in enumerate(parts)
    )


def with_bindings(body: Block, first: int, last: int) -> Block:
    """Return statement `last` of a block after the checks from statement `first` on, and every binding that these use."""
    part: Block = (body[last],)
    used = used_names(body[last])
    for position in reversed(range(last)):
        stmt = body[position]
        is_own_check = isinstance(stmt, BoundsCheck) and position >= first
        if is_own_check or (isinstance(stmt, (Let, Reduce)) and stmt.name in used):
            part, used = (stmt, *part), used | used_names(stmt)
    return part


def used_params(params: tuple[Param, ...], body: Block) -> tuple[Param, ...]:
    """Return the parameters that a block uses; those that it only reads become inputs."""
    read, written = loaded_buffers(body), stored_buffers(body)
    roles = {p.name: p.role if p.name in written or p.role == "const" else "in" for p in params}
    return tuple(replace(p, role=roles[p.name]) for p in params if p.name in read | written)
