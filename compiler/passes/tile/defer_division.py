"""Deferred division: weights are summed first, and each sum is divided once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.softmax_match import WeightedSum, match_softmax_row
from compiler.ir.scalar import Ref
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Reduce, Stmt, Store, dim_hint, iteration_count_hint
from compiler.ir.tile.loop_nest import wrap_in_nest
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class DeferDivision(TilePass):
    """Divide the weighted sums behind a softmax, instead of every weight of the row.

    for %k { store %e[%k] / %t, %p[%k] }  for %j { %s = reduce add %r { yield %p[%r] * %v[%r, %j] }  store %s, %y[%j] }
    ->
    for %j { %a = reduce add %r { yield %e[%r] * %v[%r, %j] }  %s = %a / %t  store %s, %y[%j] }

    Applies where a row has at least as many weights as sums; longer rows get the same from `online-softmax`.  Sums are rounded
    once more, weights once less.
    """

    name = "defer-division"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        names = NameSupply(ir)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or (body := with_deferred_division(stmt.body, names)) is None:
                return (stmt,)
            may_apply = context.may_apply(self, "weighted sums are divided, not the weights")
            return (replace(stmt, body=body) if may_apply else stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


def with_deferred_division(body: Block, names: NameSupply) -> Block | None:
    """Return the rows of a softmax with divisions behind their sums; None if there are none, or if more would be divided."""
    row = match_softmax_row(body)
    sums = [s for s in row.weighted_sums if s.divisor is not None] if row else []
    if row is None or not sums or sum(iteration_count_hint(s.loops) for s in sums) > dim_hint(row.extent):
        return None
    by_name = {s.reduction.name: s for s in sums}
    new: list[Stmt] = []
    for stmt in body:
        nested = [stmt, *tile.walk(tile.stmt_body(stmt))]
        if any(isinstance(s, (Local, Store)) and s.buffer in row.quotients for s in nested):
            continue
        weighted = next((by_name[s.name] for s in nested if isinstance(s, Reduce) and s.name in by_name), None)
        new += (stmt,) if weighted is None else divided_sums(weighted, names)
    return None if any(e.buffer in row.quotients for e in tile.loads(tuple(new))) else tuple(new)


def divided_sums(s: WeightedSum, names: NameSupply) -> Block:
    """Return the loops around a weighted sum, which is divided at their end."""
    assert s.divisor is not None
    total = replace(s.reduction, name=names(f"{s.reduction.name}.sum"))
    quotient = Let(s.reduction.name, Ref(total.value.dtype, total.name) / s.divisor)
    return wrap_in_nest(s.loops, (*s.prologue, total, quotient, *s.epilogue))
