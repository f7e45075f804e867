"""Decide which loops threads share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.index import interval
from compiler.ir.team import is_shared
from compiler.ir.tile import Block, For, Kernel, Stmt, known
from compiler.passes.access import work, work_in_sizes
from compiler.passes.base import Context, TilePass, register
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Parallelize(TilePass):
    """parallel %i { parallel %j { ... } }  ->  parallel %i { for %j { ... } }  where %i alone gives every thread enough

    Kernels of less than `grain` operations run on the calling thread: waking the others would take longer.  Where that depends
    on open sizes, the kernel is `shared if` they are large enough.  Outer loops are shared until each thread has `slices` steps;
    the loops inside stay serial.  What stands beside them every thread repeats (see compiler.ir.team), unless that is most of
    the work.
    """

    name = "parallelize"
    exact = True
    grain: int = 60_000
    slices: int = 16

    def run(self, ir: Kernel, context: Context) -> Kernel:
        exact, total = work_in_sizes(ir), work(ir)
        least, most = interval(exact, {}) or (total, total)
        if most < self.grain:
            context.missed(self, f"{total} operations are too few to share")
            return ir.with_body(serial(ir.body))
        wanted = self.slices * (context.machine or Machine()).threads
        repeated = work(ir.with_body(tuple(s for s in ir.body if not (isinstance(s, For) and s.parallel))))
        if not is_shared(ir) or 2 * repeated > total:
            return ir.with_body(serial(ir.body))
        if total < 16 * self.grain:
            context.offer(self, replace(self, grain=most + 1))
        context.offer(self, replace(self, slices=max(1, self.slices // 4)))
        rare = max(1, total // self.grain)
        body = tuple(self.share(s, wanted, rare) if isinstance(s, For) and s.parallel else s for s in ir.body)
        if least >= self.grain:
            return ir.with_body(body)
        context.applied(self, f"shared if there are {self.grain} operations or more")
        return replace(ir, body=body, surplus=exact - self.grain)

    def share(self, loop: For, wanted: int, rare: int) -> For:
        """Keep `loop` and what nests directly in it parallel until there are `wanted` steps, also where there is a `rare`th of the work."""
        extent = known(loop.range.extent, 0)
        steps = -(-extent // loop.range.tile) if extent else wanted
        steps //= 1 if isinstance(loop.range.extent, int) else rare
        inner = loop.body
        if steps < wanted and len(inner) == 1 and isinstance(inner[0], For) and inner[0].parallel:
            return replace(loop, body=(self.share(inner[0], -(-wanted // max(1, steps)), rare),))
        return replace(loop, body=serial(inner))


def serial(body: Block) -> Block:
    """`body` with no loop shared."""

    def one(s: Stmt) -> Stmt:
        return replace(s, parallel=False, body=serial(s.body)) if isinstance(s, For) else s

    return tuple(one(s) for s in body)
