"""Parallelization: choose the loops whose steps threads share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.cost.estimates import estimated_ops, symbolic_ops
from compiler.ir.symbolic.index_expr import Dim, interval, product
from compiler.ir.tile.kernel import Block, For, Kernel, Stmt, dim_hint, walk
from compiler.ir.tile.loop_nest import perfect_parallel_nest, trip_count
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.passes.base import Context, TilePass, from_machine, register


@register
@dataclass(frozen=True)
class Parallelize(TilePass):
    """Keep outer loops parallel until threads have enough steps, and make the others serial.

    parallel %i { parallel %j { ... } }  ->  parallel %i { for %j { ... } }

    Each thread needs `steps_per_thread` steps.  Kernels of fewer than `grain_size` operations run on the calling thread,
    because sharing them would take longer; a chunk that a thread claims has at least half as many (`max_chunks`).  Every thread
    repeats the statements outside of parallel loops (see `compiler.ir.tile.thread_sync`), so a kernel stays serial if
    these are most of its operations.
    """

    name = "parallelize"
    exact = True
    grain_size: int = from_machine("parallel_ops")
    steps_per_thread: int = from_machine("steps_per_thread")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        dynamic_ops, total = symbolic_ops(ir, context.machine), estimated_ops(ir, context.machine)
        least, most = interval(dynamic_ops, {}) or (total, total)
        if most < self.grain_size:
            context.missed(self, f"{total} operations: below grain size")
            return self.serial(ir, context)
        min_steps = self.steps_per_thread * context.machine.threads
        serial = ir.with_body(tuple(s for s in ir.body if not (isinstance(s, For) and s.parallel)))
        serial_ops = estimated_ops(serial, context.machine)
        message = f"parallel if at least {self.grain_size} operations" if least < self.grain_size else "parallel"
        if (
            not is_parallelizable(ir)
            or 2 * serial_ops > total
            or not context.may_apply(self, message, remark=least < self.grain_size)
        ):
            return self.serial(ir, context)
        if total < 16 * self.grain_size:
            context.propose(self, replace(self, grain_size=most + 1))
        context.propose(self, replace(self, steps_per_thread=max(1, self.steps_per_thread // 4)))
        work_ratio = max(1, total // self.grain_size)
        body = tuple(
            self.keep_parallel(s, min_steps, work_ratio) if isinstance(s, For) and s.parallel else s for s in ir.body
        )
        return replace(ir, body=body, max_chunks=self.max_chunks(body, dynamic_ops))

    def serial(self, ir: Kernel, context: Context) -> Kernel:
        """Return the kernel with serial loops only."""
        if not any(isinstance(s, For) and s.parallel for s in walk(ir.body)):
            return ir
        allowed = context.may_apply(self, "loops become serial", required=True, remark=False)
        return ir.with_body(serialize(ir.body)) if allowed else ir

    def max_chunks(self, body: Block, ops: Dim) -> Dim | None:
        """Return how often half of `grain_size` fits into `ops` operations; None if there are not so many iterations."""
        most = ops // max(1, self.grain_size // 2)
        loops = [perfect_parallel_nest((s,)) for s in body if isinstance(s, For) and s.parallel]
        excess = [interval(product(trip_count(f.range) for f in nest) - most, {}) for nest in loops]
        return most if any(e is None or e[1] > 0 for e in excess) else None

    def keep_parallel(self, loop: For, min_steps: int, work_ratio: int) -> For:
        """Keep `loop`, and loops perfectly nested in it, parallel until there are `min_steps` steps.

        A dynamic extent counts as 1/`work_ratio`, for calls with only just enough operations to run in parallel.
        """
        extent = dim_hint(loop.range.extent, 0)
        steps = -(-extent // loop.range.tile) if extent else min_steps
        steps //= 1 if isinstance(loop.range.extent, int) else work_ratio
        inner = loop.body
        if steps < min_steps and len(inner) == 1 and isinstance(inner[0], For) and inner[0].parallel:
            return replace(loop, body=(self.keep_parallel(inner[0], -(-min_steps // max(1, steps)), work_ratio),))
        return replace(loop, body=serialize(inner))


def serialize(body: Block) -> Block:
    """Make all loops of `body` serial."""

    def one(s: Stmt) -> Stmt:
        return replace(s, parallel=False, body=serialize(s.body)) if isinstance(s, For) else s

    return tuple(one(s) for s in body)
