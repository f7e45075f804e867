"""Decide which loops threads share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import estimated_ops, symbolic_ops
from compiler.cost.machine import Machine
from compiler.ir.symbolic.index_expr import interval
from compiler.ir.tile.kernel import Block, For, Kernel, Stmt, dim_hint
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Parallelize(TilePass):
    """parallel %i { parallel %j { ... } }  ->  parallel %i { for %j { ... } }  where %i alone gives every thread enough

    Kernels of less than `grain` operations run on the calling thread: waking the others would take longer.  Where that depends
    on open sizes, the kernel is `parallel if` they are large enough.  Outer loops are shared until each thread has `slices` steps;
    the loops inside stay serial.  What stands beside them every thread repeats (see compiler.ir.team), unless that is most of
    the work.
    """

    name = "parallelize"
    exact = True
    grain_size: int = 60_000
    steps_per_thread: int = 16

    def run(self, ir: Kernel, context: Context) -> Kernel:
        dynamic_ops, total = symbolic_ops(ir), estimated_ops(ir)
        least, most = interval(dynamic_ops, {}) or (total, total)
        if most < self.grain_size:
            context.missed(self, f"{total} operations are too few to share")
            return ir.with_body(serialize(ir.body))
        min_steps = self.steps_per_thread * (context.machine or Machine()).threads
        serial_ops = estimated_ops(ir.with_body(tuple(s for s in ir.body if not (isinstance(s, For) and s.parallel))))
        if not is_parallelizable(ir) or 2 * serial_ops > total:
            return ir.with_body(serialize(ir.body))
        if total < 16 * self.grain_size:
            context.propose(self, replace(self, grain_size=most + 1))
        context.propose(self, replace(self, steps_per_thread=max(1, self.steps_per_thread // 4)))
        work_ratio = max(1, total // self.grain_size)
        body = tuple(
            self.keep_parallel(s, min_steps, work_ratio) if isinstance(s, For) and s.parallel else s for s in ir.body
        )
        if least >= self.grain_size:
            return ir.with_body(body)
        context.applied(self, f"parallel if there are {self.grain_size} operations or more")
        return replace(ir, body=body, parallel_condition=dynamic_ops - self.grain_size)

    def keep_parallel(self, loop: For, min_steps: int, work_ratio: int) -> For:
        """Keep `loop` and what nests directly in it parallel until there are `wanted` steps, also where there is a `rare`th of the work."""
        extent = dim_hint(loop.range.extent, 0)
        steps = -(-extent // loop.range.tile) if extent else min_steps
        steps //= 1 if isinstance(loop.range.extent, int) else work_ratio
        inner = loop.body
        if steps < min_steps and len(inner) == 1 and isinstance(inner[0], For) and inner[0].parallel:
            return replace(loop, body=(self.keep_parallel(inner[0], -(-min_steps // max(1, steps)), work_ratio),))
        return replace(loop, body=serialize(inner))


def serialize(body: Block) -> Block:
    """`body` with no loop shared."""

    def one(s: Stmt) -> Stmt:
        return replace(s, parallel=False, body=serialize(s.body)) if isinstance(s, For) else s

    return tuple(one(s) for s in body)
