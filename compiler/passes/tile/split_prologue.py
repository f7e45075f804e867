"""Loop distribution: compute the operand of a contraction row by row, before its tile of rows, to limit code size and registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.cost.local_memory import row_stride
from compiler.errors import TransformError
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Reduce, Stmt
from compiler.ir.tile.loop_nest import has_scalar_loops
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.tile.parallelize import serialize
from compiler.passes.tile.peel import unrolled_ops
from compiler.transforms.distribute import distribute_producers
from compiler.transforms.split import in_tiles


@register
@dataclass(frozen=True)
class SplitPrologue(TilePass):
    """Split what computes the operand of a contraction from it, tile by tile.

    parallel %i in 0..24 tile 8 { local %t  for %k { store x[%index[%i, %k]], %t[%k] }  reduce %k { %t[%k] * %w[%k] } }
    ->  parallel %i.tile in 0..3 {
          local %t.rows
          for %i in %i.tile*8..%i.tile*8 + 8 { for %k { store x[%index[%i, %k]], %t.rows[%i - %i.tile*8, %k] } }
          for %i in %i.tile*8..%i.tile*8 + 8 tile 8 { reduce %k { %t.rows[%i - %i.tile*8, %k] * %w[%k] } } }

    Applies in two cases.  What a tile computes before the contraction has more than `max_ops` operations: too many for the
    instruction cache.  A loop without lanes, as of a gather, would hold scalars of all rows in registers at every step, and read
    from as many places; loops that carry values, as scans, stay, because their rows hide each other's latency.
    """

    name = "split-prologue"
    exact = True
    max_ops: int = from_machine("max_epilogue_ops")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh = NameSupply(ir)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or stmt.range.lanes or stmt.range.tile == 1:
                return (stmt,)
            count = producer_count(stmt.body)
            producers = stmt.body[:count]
            is_long = stmt.range.tile * unrolled_ops(producers) > self.max_ops
            if not is_long and not any(map(is_scalar_copy, producers)):
                return (stmt,)
            serial = replace(stmt, body=serialize(stmt.body))  # threads share the tiles
            try:
                split = in_tiles(serial, fresh, lambda rows: distribute_producers(rows, count, fresh, row_stride), rule)
            except TransformError as refusal:
                context.missed(self, f"operand in %{stmt.range.var} not split: {refusal}")
                return (stmt,)
            return split if context.may_apply(self, f"operand computed in %{stmt.range.var} row by row") else (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


def producer_count(body: Block) -> int:
    """Return the number of statements before the first contraction; 0 if there is none."""
    return next((k for k, s in enumerate(body) if any(map(is_contraction, tile.walk((s,))))), 0)


def is_scalar_copy(s: Stmt) -> bool:
    """Return True for a loop without lanes whose iterations are independent: it reads no buffer that it stores, and reduces nothing."""
    reads, writes = tile.loaded_buffers((s,)), tile.stored_buffers((s,))
    carries = not reads.isdisjoint(writes) or any(isinstance(x, Reduce) for x in tile.walk((s,)))
    return isinstance(s, For) and has_scalar_loops((s,)) and not carries
