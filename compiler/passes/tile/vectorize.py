"""Vectorization: choose the loop that becomes vector lanes, in each nest of a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.cost.vectorization import best_disjoint_loops, lane_count, score_loops
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Kernel, Range, Stmt
from compiler.ir.tile.substitution import with_unique_names
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Vectorize(TilePass):
    """Vectorize the loops that save most memory operations.

    for %j in 0..384 { ... }  ->  for %j in 0..384 tile 16 lanes 16 { ... }

    Each loop is scored by the memory operations it saves as lanes (see `compiler.cost.vectorization`).  It is chosen if
    it saves more than the best choices among its inner loops together, as one loop in scope can have lanes.  Loops with
    dependent steps, or whose local buffers would not fit in cache for all lanes, are excluded.  `skipped_choices` is the
    number of best choices to skip, for the autotuner.
    """

    name = "vectorize"
    skipped_choices: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir, machine = with_unique_names(ir), context.machine
        lanes = lane_count(ir, machine)
        scores = score_loops(context.accesses(ir), lanes, machine)
        chosen = set(best_disjoint_loops(ir.body, scores)[1])
        for _ in range(self.skipped_choices):
            scores |= dict.fromkeys(chosen, -1)
            chosen = set(best_disjoint_loops(ir.body, scores)[1])
        messages = {v: f"%{v} vectorized by {lanes}: saves {scores[v]} memory operations" for v in sorted(chosen)}
        if not chosen:
            context.missed(self, "no loop has contiguous accesses")
        else:
            context.propose(self, replace(self, skipped_choices=self.skipped_choices + 1))
        allowed = {v for v, message in messages.items() if context.may_apply(self, message)}

        def rule(r: Range, _: Stmt) -> Range:
            return r.with_(tile=lanes, lanes=lanes) if r.var in allowed else r

        return ir.with_body(tile.map_ranges(ir.body, rule))
