"""Divisions by what a loop does not change become multiplications."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.analysis.sum_shares import SumShares
from compiler.ir.scalar import Const, PrimitiveCall
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Range, Stmt, extent_hint
from compiler.ir.types import f32, f64
from compiler.math.division import has_plain_reciprocal, quotient
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.expand_math import Expansion, with_expanded_calls

MIN_QUOTIENTS = 128
"""Fewest vectors that share a divisor: shorter loops end while their divisions still run, beside what follows in the reorder buffer."""


@register
@dataclass(frozen=True)
class ExpandDivisions(TilePass):
    """Multiply by a reciprocal, and correct the product, where a loop of vectors divides by the same number.

    for %i tile 64 lanes 16 { store %e[%i] / %sum, %y[%i] }
    ->  %r = 1.0 / %sum  for %i ... { %p = %e[%i] * %r  %d = fma(-%p, %sum, %e[%i])  store fma(%d, %r, %p), %y[%i] }

    The result has the same bits, but for extreme numbers (`compiler.math.division`); the reciprocal stands in the loop here, and code generation moves it out.
    Shares of a sum, such as the results of a softmax, need no care for infinite quotients.
    Applies where a multiply-add is one instruction.  Divisions by powers of two are left to code generation.
    """

    name = "expand-divisions"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        calls = (e for s in tile.walk(ir.body) for value in tile.stmt_exprs(s) for e in value.calls)
        if context.machine.fma_instructions > 1 or not any(e.primitive == "div" for e in calls):
            return ir
        table = context.accesses(ir)
        found = {id(e) for e in shared_divisions(table, ir.body, ())}
        shares = SumShares(ir)

        def has_found_calls(s: Stmt) -> bool:
            return any(id(e) in found for value in tile.stmt_exprs(s) for e in value.calls)

        def expansion(e: PrimitiveCall) -> Expansion | None:
            if id(e) not in found or not context.may_apply(
                self, "divisions by the same number multiply by its reciprocal"
            ):
                return None
            x, y = e.operands
            is_share = shares.is_share(x, y)
            return lambda call: quotient(call.operands[0], call.operands[1], is_share)

        return with_expanded_calls(ir, has_found_calls, expansion)


def shared_divisions(table: Accesses, body: Block, loops: tuple[Range, ...]) -> Iterator[PrimitiveCall]:
    """Yield the divisions of vectors whose divisor is the same for many steps of the innermost of `loops` around them."""
    for s in body:
        inner = (*loops, *tile.stmt_ranges(s))
        yield from shared_divisions(table, tile.stmt_body(s), inner)
        for e in (e for value in tile.stmt_exprs(s) for e in value.calls):
            if inner and e.primitive == "div" and e.dtype in (f32, f64) and is_shared(table, e, inner):
                yield e


def is_shared(table: Accesses, division: PrimitiveCall, loops: tuple[Range, ...]) -> bool:
    """Return True if the quotient varies between lanes, and the divisor not with the innermost loop."""
    _, y = division.operands
    innermost, lane = loops[-1], next((r for r in loops if r.lanes), None)
    if isinstance(y, Const) and not has_plain_reciprocal(y):
        return False
    if lane is None or lane.var not in table.varying_loops(division) or innermost.var in table.varying_loops(y):
        return False
    return extent_hint(innermost) >= MIN_QUOTIENTS * max(1, innermost.lanes)
