"""Parallelization: choose the loops whose steps threads share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from compiler.cost.estimates import estimated_ops, symbolic_ops
from compiler.ir.symbolic.index_expr import Dim, interval, product
from compiler.ir.tile.kernel import (
    Block,
    For,
    Kernel,
    Stmt,
    dim_hint,
    is_parallel_loop,
    loaded_buffers,
    stored_buffers,
    walk,
)
from compiler.ir.tile.loop_nest import perfect_parallel_nest, trip_count
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.remark import format_seconds


@register
@dataclass(frozen=True)
class Parallelize(TilePass):
    """Keep outer loops parallel until threads have enough steps, and make the others serial.

    parallel %i { parallel %j { ... } }  ->  parallel %i { for %j { ... } }

    A loop with fewer steps than threads around several parallel loops, such as tiles and a remainder, is distributed over them, unless
    one reads what another stores.

    Each thread needs `steps_per_thread` steps.  Kernels of less than `min_seconds` of work run on the calling thread,
    because sharing them would take longer; a chunk that a thread claims has at least half as much (`max_chunks`).  Every thread
    repeats the statements outside of parallel loops (see `compiler.ir.tile.thread_sync`), so a kernel stays serial if
    these are most of its operations.
    """

    name = "parallelize"
    exact = True
    min_seconds: float = from_machine("parallel_seconds")
    steps_per_thread: int = from_machine("steps_per_thread")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        machine = context.machine
        dynamic_ops, total = symbolic_ops(ir, machine), estimated_ops(ir, machine)
        least, most = interval(dynamic_ops, {}) or (total, total)
        grain = max(1, machine.operations_in(self.min_seconds))
        if most < grain:
            work = format_seconds(machine.operation_seconds(total))
            context.missed(self, f"{work} of work: waking threads takes longer")
            return self.serial(ir, context)
        serial_ops = estimated_ops(ir.with_body(tuple(s for s in ir.body if not is_parallel_loop(s))), machine)
        message = "parallel" if least >= grain else f"parallel from {format_seconds(self.min_seconds)} of work on"
        if (
            not is_parallelizable(ir)
            or 2 * serial_ops > total
            or not context.may_apply(self, message, remark=least < grain)
        ):
            return self.serial(ir, context)
        if total < 16 * grain:
            context.propose(self, replace(self, min_seconds=machine.operation_seconds(most + 1)))
        context.propose(self, replace(self, steps_per_thread=max(1, self.steps_per_thread // 4)))
        min_steps, work_ratio = self.steps_per_thread * machine.threads, max(1, total // grain)
        kept = (
            self.keep_parallel(s, min_steps, machine.threads, work_ratio) if is_parallel_loop(s) else (s,)
            for s in ir.body
        )
        body = tuple(s for block in kept for s in block)
        return replace(ir, body=body, max_chunks=max_chunks(body, dynamic_ops // max(1, grain // 2)))

    def serial(self, ir: Kernel, context: Context) -> Kernel:
        """Return the kernel with serial loops only."""
        if not any(map(is_parallel_loop, walk(ir.body))):
            return ir
        allowed = context.may_apply(self, "loops become serial", required=True, remark=False)
        return ir.with_body(serialize(ir.body)) if allowed else ir

    def keep_parallel(self, loop: For, min_steps: int, threads: int, work_ratio: int) -> tuple[For, ...]:
        """Keep `loop`, and the loops that are all of its body, parallel until there are `min_steps` steps.

        One with fewer steps than `threads` is distributed over several loops in it.  A dynamic extent counts as 1/`work_ratio`,
        for calls with only just enough operations to run in parallel.
        """
        extent = dim_hint(loop.range.extent, 0)
        steps = -(-extent // loop.range.tile) if extent else min_steps
        steps //= 1 if isinstance(loop.range.extent, int) else work_ratio
        inner = [s for s in loop.body if isinstance(s, For) and s.parallel]
        goes_on = len(inner) == len(loop.body) and steps < (min_steps if len(inner) == 1 else min(min_steps, threads))
        if not goes_on or exchange_values(inner):
            return (replace(loop, body=serialize(loop.body)),)
        missing, idle = (-(-n // max(1, steps)) for n in (min_steps, threads))
        kept = (s for own in inner for s in self.keep_parallel(own, missing, idle, work_ratio))
        return tuple(replace(loop, body=(s,)) for s in kept)


def max_chunks(body: Block, most: Dim) -> Dim | None:
    """Return `most`, the most chunks with enough work, or None if no loop has more iterations."""
    nests = (perfect_parallel_nest((s,)) for s in body if is_parallel_loop(s))
    excess = (interval(product(trip_count(f.range) for f in nest) - most, {}) for nest in nests)
    return most if any(e is None or e[1] > 0 for e in excess) else None


def exchange_values(statements: Sequence[Stmt]) -> bool:
    """Return True if a statement loads from a buffer that another one stores to."""
    return any(stored_buffers((a,)) & loaded_buffers((b,)) for a, b in permutations(statements, 2))


def serialize(body: Block) -> Block:
    """Make all loops of `body` serial."""

    def one(s: Stmt) -> Stmt:
        return replace(s, parallel=False, body=serialize(s.body)) if isinstance(s, For) else s

    return tuple(one(s) for s in body)
