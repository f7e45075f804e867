"""Choose the loop that lies across vector lanes, in each part of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.tile import Block, Kernel, Range, Reduce, Stmt
from compiler.ir.types import DType
from compiler.passes.access import Access, Accesses, contraction
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import with_unique_names
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Vectorize(TilePass):
    """for %j in 0..384 { ... }  ->  for %j in 0..384 tile 16 lanes 16 { ... }

    Each loop is scored by the memory operations it would save as the lane axis: a place that moves by one element per step
    becomes one vector access, one that stays becomes a broadcast, any other a gather that saves nothing.  Constants count as
    contiguous along any loop that indexes them plainly, because they are packed later.  A loop gets lanes where it saves more
    than the best choices among the loops inside it together; only one axis in scope can have them.  Steps that depend on each
    other stay apart, and so do those whose local buffers would not fit in cache together.
    """

    name = "vectorize"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir, machine = with_unique_names(ir), context.machine or Machine()
        table, lanes = Accesses(ir), lanes_for(ir, machine)
        free = [v for v in table.loops if table.independent(v) and table.held(v) * lanes <= machine.l2]
        scores = {v: self.score(table, v, lanes) if v in free else -1 for v in table.loops}
        chosen = set(best_set(ir.body, scores)[1])
        for v in sorted(chosen):
            context.applied(self, f"%{v} across {lanes} lanes: {scores[v]} accesses saved")
        if not chosen:
            context.missed(self, "no loop has contiguous accesses")

        def rule(r: Range, _: Stmt) -> Range:
            return r.with_(tile=lanes, lanes=lanes) if r.var in chosen else r

        return ir.with_body(tile.map_ranges(ir.body, rule))

    def score(self, table: Accesses, v: str, lanes: int) -> int:
        """Memory operations saved by taking `lanes` steps of loop `v` at once."""
        r, stmt, around = table.loops[v]
        if isinstance(r.extent, int) and r.extent < 4:
            return -1
        used = min(lanes, r.extent) if isinstance(r.extent, int) else lanes
        saved = 0
        for a in table.all:
            if v not in {x.var for x in a.loops}:
                continue
            if self.regular(table, a, v):
                saved += a.count - a.count // used
            elif a.is_store:
                saved -= a.count
        if isinstance(stmt, Reduce):  # the lanes are combined at the end
            times = 1
            for x in around:
                times *= x.extent if isinstance(x.extent, int) else 1
            saved -= times * 4 * (6 if contraction(stmt) else 1)
        return saved

    @staticmethod
    def regular(table: Accesses, a: Access, v: str) -> bool:
        """Whether successive `v` read or write successive elements, or the same one."""
        step = table.step(a, v)
        if step in (0, 1):
            return not (a.is_store and step == 0 and table.roles[a.buffer] != "local") or step == 1
        return table.roles[a.buffer] == "const" and sum(1 for d in a.index if str(d) == v) == 1 and step is not None


def best_set(body: Block, scores: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """The loops of `body`, no two in one another, with the highest total score."""
    total, chosen = 0, tuple[str, ...]()
    for stmt in body:
        score, loops = best_set(tile.blocks(stmt), scores)
        for r in tile.ranges(stmt):
            if scores[r.var] > score:
                score, loops = scores[r.var], (r.var,)
        total, chosen = total + score, (*chosen, *loops)
    return total, chosen


def lanes_for(kernel: Kernel, machine: Machine) -> int:
    """Elements per register for the widest float the kernel computes in, else for its widest type."""
    types: list[DType] = [p.type.dtype for p in kernel.params]
    floats = [d for d in types if d.is_float]
    bits = max((max(32, d.bits) for d in (floats or types)), default=32)
    return machine.lanes(bits)
