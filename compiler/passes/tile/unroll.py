"""Repeat the steps of short loops instead of counting them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import is_contraction
from compiler.cost.contraction import RegisterTile, hides_loop_overhead
from compiler.cost.machine import Machine
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Range, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Unroll(TilePass):
    """reduce %c in 0..64, %y in 0..3, %x in 0..3 { ... }  ->  reduce %c in 0..64, %y in 0..3 unroll 3, %x in 0..3 unroll 3 { ... }

    The innermost ranges of a reduction that hold no loop themselves are written out while they have at most `steps` steps
    together: windows of convolutions and poolings, whose addresses then are constants. A range of lanes is too while that makes at most
    `vectors`, those of the tiles around it together.

    for %i tile 6 { reduce %k in 0..768 { ... } }  ->  for %i tile 6 { reduce %k in 0..768 unroll 4 { ... } }

    Of a longer one, `jump` steps are, where the multiply-adds of one step are too few for the jump after it to cost nothing.
    """

    name = "unroll"
    exact = True
    max_steps: int = 9
    max_vectors: int = 64
    partial_factor: int = 4

    def run(self, ir: Kernel, context: Context) -> Kernel:
        machine = context.machine or Machine()
        accesses = context.accesses(ir)
        accumulator_tiles = {id(a.stmt): accumulator_tile(a.loops) for a in accesses.all if is_contraction(a.stmt)}

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or any(tile.stmt_ranges(s) for s in stmt.body):
                return (stmt,)
            around = accesses.loops[stmt.ranges[0].var][2]
            ranges, last = self.fully_unroll(stmt.ranges, vector_count(around)), stmt.ranges[-1]
            if (
                ranges[-1] == last
                and id(stmt) in accumulator_tiles
                and not hides_loop_overhead(accumulator_tiles[id(stmt)], machine)
            ):
                ranges = (*stmt.ranges[:-1], last.with_(unroll=max(last.unroll, self.partial_factor)))
            if ranges != stmt.ranges:
                context.applied(self, f"steps of %{stmt.name} written out")
                context.propose(self, None)
            return (replace(stmt, ranges=ranges),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def fully_unroll(self, ranges: tuple[Range, ...], copies: int) -> tuple[Range, ...]:
        """The last ranges with `unroll` set to their whole length, as far as `steps` allows, in so many `copies` of the reduction."""
        out: list[Range] = []
        left = self.max_steps
        for r in reversed(ranges):
            steps = -(-r.extent // r.tile) if isinstance(r.extent, int) else left + 1
            left = left // max(steps, 1)
            short = left and (not r.lanes or copies * vector_count([r]) * steps <= self.max_vectors)
            out.append(r.with_(unroll=max(steps, 1)) if short else r)
        return tuple(reversed(out))


def accumulator_tile(loops: Sequence[Range]) -> RegisterTile:
    """The accumulators of a sum inside `loops`."""
    return RegisterTile(
        rows=vector_count([r for r in loops if not r.lanes]), registers=vector_count([r for r in loops if r.lanes])
    )


def vector_count(loops: Sequence[Range]) -> int:
    """How many vectors, or numbers where there are no lanes, one step of all `loops` holds."""
    return prod(r.tile // max(r.lanes, 1) for r in loops)
