"""Loop distribution: a sum whose terms are contractions becomes a loop that stores its terms, and a sum of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.cost.contraction import RegisterTile, best_tiles, total_cycles
from compiler.cost.contraction_nest import ContractionNest
from compiler.cost.machine import Machine
from compiler.errors import TransformError
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, Kernel, Reduce, Stmt
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.tile import Tile
from compiler.transforms.distribute import distribute_sum


@register
@dataclass(frozen=True)
class DistributeSums(TilePass):
    """Distribute sums over rows of a register tile, where a tile of another height takes less time.

    %t = reduce add %r in 0..17 { %s = reduce add %k { ... }  store %s, %e[%r]  yield %s }
    ->  for %r in 0..17 { %s = reduce add %k { ... }  store %s, %e[%r] }  %t = reduce add %l in 0..17 { yield %e[%l] }

    The rows of a sum consist of whole tiles: one of 17 rows has tiles of 17 or of one.  The last tile of a loop may be partial.
    """

    name = "distribute-sums"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table, fresh = context.accesses(ir), NameSupply(ir)
        slow = {n.row.var for n in row_sums(table, context.machine) if n.row and wants_other_tile(n, context.machine)}

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or not slow.intersection(r.var for r in stmt.ranges):
                return (stmt,)
            try:
                distributed = distribute_sum(stmt, fresh)
            except TransformError as refusal:
                context.missed(self, str(refusal))
                return (stmt,)
            message = f"the terms of %{stmt.name} in a loop of their own: the best tile does not divide it"
            return distributed if context.may_apply(self, message) else (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule)) if slow else ir


def row_sums(table: Accesses, machine: Machine) -> Iterator[ContractionNest]:
    """Yield the contractions whose rows another sum over one loop adds."""
    for s in filter(is_contraction, tile.walk(table.kernel.body)):
        for nest in Tile().match_contraction(table, s, frozenset(), machine):
            if nest.sums_rows and nest.row and len(tile.stmt_ranges(table.loops[nest.row.var][1])) == 1:
                yield nest


def wants_other_tile(nest: ContractionNest, machine: Machine) -> bool:
    """Return True if the best tile takes less time than one of the same width whose height divides the rows."""
    best = best_tiles(nest.rows, [nest.problem], machine)[0]
    whole = RegisterTile(nest.height(best.rows), best.registers)
    return total_cycles(nest.rows, nest.problem, best, machine) < total_cycles(nest.rows, nest.problem, whole, machine)
