"""Loop distribution: split a contraction from its epilogue to limit code size and register pressure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from compiler.errors import TransformError
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, has_partial_rows
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.tile.peel import remainder_code_ops, unrolled_ops
from compiler.transforms.distribute import backward_slice, distribute
from compiler.transforms.interchange import interchange
from compiler.transforms.split import in_tiles


@register
@dataclass(frozen=True)
class SplitEpilogue(TilePass):
    """Split reductions from their epilogue, tile by tile.

    parallel %i in 0..24 tile 8 { parallel %j lanes 16 { %s = reduce %k { ... }  store f(%s), %y[%i, %j] } }
    ->  parallel %i.tile in 0..3 { parallel %j lanes 16 {
          local %t
          for %i in %i.tile*8..%i.tile*8 + 8 tile 8 { %s = reduce %k { ... }  store %s, %t[%i - %i.tile*8] }
          for %i in %i.tile*8..%i.tile*8 + 8 { store f(%t[%i - %i.tile*8]), %y[%i, %j] } } }

    Applies in three cases.  Several reductions of a tile exceed the registers: LLVM would hold the first results, and
    spill the accumulators of the last at every step.  The epilogue of a tile has more than `max_epilogue_ops` operations:
    too many for registers and the instruction cache.  Code for all partial tiles of a dynamic extent would exceed
    `max_expanded_ops`, but for the reductions alone does not.
    """

    name = "split-epilogue"
    exact = True
    max_epilogue_ops: int = from_machine("max_epilogue_ops")
    max_expanded_ops: int = from_machine("max_expanded_ops")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh, loops = NameSupply(ir), context.accesses(ir).loops

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or stmt.range.lanes or stmt.range.tile == 1:
                return (stmt,)
            _, *nest = perfect_nest((stmt,))
            inside = nest[-1].body if nest else stmt.body
            sums = backward_slice(inside, {s.name for s in inside if isinstance(s, Reduce)})
            enclosing_loops = (*loops[stmt.range.var][2], *(f.range for f in nest))
            if not self.is_profitable(stmt, inside, sums, enclosing_loops, context):
                return (stmt,)

            def tile_body(rows: For) -> Block:
                return interchange(nest, distribute(replace(rows, body=inside), sums, fresh))

            try:
                interchange([*nest, stmt], inside)  # rows go inside of the other loops
                split = in_tiles(stmt, fresh, tile_body, rule)
            except TransformError as refusal:
                context.missed(self, f"epilogue of %{stmt.range.var} not split: {refusal}")
                return (stmt,)
            allowed = context.may_apply(self, f"epilogue of %{stmt.range.var} split into its own loop")
            return split if allowed else (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def is_profitable(
        self, rows: For, inside: Block, sums: Block, enclosing_loops: tuple[Range, ...], context: Context
    ) -> bool:
        """Return True if there are reductions, and one of the three cases of the class holds."""
        has_partial, epilogue = has_partial_rows(rows.range), tuple(s for s in inside if not isinstance(s, Reduce))
        if not sums or (has_partial and remainder_code_ops(rows.range, sums) > self.max_expanded_ops):
            return False
        vectors = rows.range.tile * prod(-(-r.tile // max(1, r.lanes)) for r in enclosing_loops)
        totals = sum(isinstance(s, Reduce) for s in sums)
        exceeds_registers = totals > 1 and vectors * totals >= context.machine.registers
        return (
            exceeds_registers
            or vectors * unrolled_ops(epilogue) > self.max_epilogue_ops
            or (has_partial and remainder_code_ops(rows.range, rows.body) > self.max_expanded_ops)
        )
