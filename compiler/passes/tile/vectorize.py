"""Vectorization: choose the loop that becomes vector lanes, in each nest of a kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Accesses
from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.vectorization import best_disjoint_loops, lane_count, score_loops
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Kernel, Range, Reduce, Stmt
from compiler.ir.tile.loop_nest import top_nests
from compiler.ir.tile.substitution import with_unique_names
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.pack import Pack
from compiler.passes.tile.tile import Tile
from compiler.passes.tile.unroll import Unroll

CLOSE_SCORE = 0.9
"""Part of the best score from which the second best loops are timed too; in 55 layers and networks none below took less time."""


@register
@dataclass(frozen=True)
class Vectorize(TilePass):
    """Vectorize the loops that save most memory operations.

    for %j in 0..384 { ... }  ->  for %j in 0..384 tile 16 lanes 16 { ... }

    Each loop is scored by the memory operations it saves as lanes (see `compiler.cost.vectorization`).  It is chosen if
    it saves more than the best choices among its inner loops together, as one loop in scope can have lanes.  Loops with
    dependent steps, or whose local buffers would not fit in cache for all lanes, are excluded.  Where lanes would gather,
    `compiler.cost.kernel_time` compares them with an unrolled loop of scalars: a gather takes as long as its elements.
    `skipped_choices` is the number of best choices to skip, for the autotuner.
    """

    name = "vectorize"
    skipped_choices: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir, machine = with_unique_names(ir), context.machine
        if any(r.lanes for r, _, _ in context.accesses(ir).loops.values()):
            return ir
        lanes = lane_count(ir, machine)
        scores = score_loops(context.accesses(ir), lanes, machine)
        chosen = set(best_disjoint_loops(ir.body, scores)[1])
        for _ in range(self.skipped_choices):
            scores |= dict.fromkeys(chosen, -1)
            chosen = set(best_disjoint_loops(ir.body, scores)[1])
        if not self.skipped_choices and (others := self.quicker_lanes(ir, chosen, scores, lanes, context)):
            context.missed(self, f"lanes along {names_of(chosen)} would take longer")
            chosen = others
        if slower := self.slower_lanes(ir, chosen, lanes, context):
            context.missed(self, f"lanes along {names_of(slower)} would gather, which takes longer")
        chosen -= slower
        messages = {v: f"%{v} vectorized by {lanes}: saves {scores[v]} memory operations" for v in sorted(chosen)}
        if not chosen:
            context.missed(self, "no loop has contiguous accesses")
        else:
            context.propose(self, replace(self, skipped_choices=self.skipped_choices + 1))
        allowed = {v for v, message in messages.items() if context.may_apply(self, message)}
        return with_lanes(ir, allowed, lanes)

    def slower_lanes(self, ir: Kernel, chosen: Collection[str], lanes: int, context: Context) -> set[str]:
        """Return those of the `chosen` loops that gather, and take longer with lanes than without, each in its own nest."""
        table = context.accesses(ir)
        gathering = {v for v in chosen if any(table.depends_on(a, v) and table.stride(a, v) is None for a in table.all)}
        slower = set[str]()
        for nest in top_nests(ir) if gathering else ():
            loops = {r.var for s in tile.walk(nest.body) for r in tile.stmt_ranges(s)}
            own, doubtful = loops.intersection(chosen), loops & gathering
            if doubtful:
                with_all = seconds_with_lanes(nest, own, lanes, context)
                slower |= {v for v in doubtful if with_all > seconds_with_lanes(nest, own - {v}, lanes, context)}
        return slower

    def quicker_lanes(
        self, ir: Kernel, chosen: set[str], scores: Mapping[str, int], lanes: int, context: Context
    ) -> set[str]:
        """Return the second best loops for lanes if they take less time than the `chosen` ones, else an empty set.

        Compares lanes along the results of a product that gather with those along its sum.  Where scores are close, compares lanes
        along the sum of a product with lanes along its result, where a tile of accumulators shares loads that scores count for
        each, and lanes that store a product's results apart with lanes that store them in order: scores do not count lines.
        """
        table = context.accesses(ir)
        gathered = {v for v in table.loops if gathers_operand(table, v, lanes)}
        gathered = gathered if gathered & chosen else set()
        if not gathered and not any(
            is_contraction(table.loops[v][1]) or stores_product_apart(table, v) for v in chosen
        ):
            return set()
        score, others = best_disjoint_loops(ir.body, {**scores, **dict.fromkeys(chosen | gathered, -1)})
        if not others or any(isinstance(table.loops[v][1], Reduce) and not gathered for v in others):
            return set()
        if not gathered and score < CLOSE_SCORE * sum(scores[v] for v in chosen):
            return set()
        best, second = (seconds_with_lanes(ir, loops, lanes, context) for loops in (chosen, others))
        return set(others) if second < best else set()


def stores_product_apart(table: Accesses, v: str) -> bool:
    """Return True if results of a contraction inside loop `v` are stored with a stride along it."""
    stores = (a for a in table.all if a.is_store and v in a.loop_vars and table.roles[a.buffer] != "local")
    return any(map(is_contraction, table.reductions(v))) and any(abs(table.stride(a, v) or 0) > 1 for a in stores)


def gathers_operand(table: Accesses, v: str, lanes: int) -> bool:
    """Return True if lanes along the results `v` of a contraction load an argument's elements one by one, and lanes along its sum none."""
    for s in filter(is_contraction, table.reductions(v)):
        loads = [a for a in table.loads_of(s) if table.roles[a.buffer] == "in"]
        along_sum = any(all(table.stride(a, r.var) in (0, 1) for a in loads) for r in s.ranges)
        if along_sum and any(abs(table.stride(a, v) or 0) > lanes // 2 for a in loads):
            return True
    return False


def seconds_with_lanes(kernel: Kernel, loops: Collection[str], lanes: int, context: Context) -> float:
    """Return the estimated seconds of a kernel with lanes along `loops`, tiled and unrolled."""
    scheduled = with_lanes(kernel, loops, lanes)
    for p in (Tile(), Pack(), Unroll()):
        scheduled = p.for_machine(context.machine).run(scheduled, context.trial())
    return predicted_seconds(scheduled, context.machine)


def names_of(loops: Collection[str]) -> str:
    """Return the names of loops as a remark lists them."""
    return ", ".join(f"%{v}" for v in sorted(loops))


def with_lanes(kernel: Kernel, loops: Collection[str], lanes: int) -> Kernel:
    """Return the kernel with lanes along `loops`."""

    def rule(r: Range, _: Stmt) -> Range:
        return r.with_(tile=lanes, lanes=lanes) if r.var in loops else r

    return kernel.with_body(tile.map_ranges(kernel.body, rule))
