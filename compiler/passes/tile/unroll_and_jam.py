"""Unroll-and-jam: interleave independent chains of dependent steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.cost.vectorization import lane_count
from compiler.ir import scalar
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Stmt, Store
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.unroll_and_jam import unroll_and_jam


@register
@dataclass(frozen=True)
class UnrollAndJam(TilePass):
    """Unroll and jam a parallel loop around a scan.

    parallel %i in 0..64 { local %c  for %k { ... %c ... } }  ->  parallel %i in 0..64 tile 4 { ... }

    Each step of a scan depends on the one before, but rows are independent.  Applies to rows without lanes: `factor` rows
    are interleaved, each in its own registers.  From `min_lane_ops` operations per step on, rows become lanes instead,
    although that needs gathers.
    """

    name = "unroll-and-jam"
    exact = True
    factor: int = from_machine("jammed_rows")
    min_lane_ops: int = from_machine("min_lane_ops")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        lanes = lane_count(ir, context.machine)
        loops_with_lanes_inside = {
            r.var for s in tile.walk(ir.body) if isinstance(s, For) and s.range.lanes for r in ranges_in(s)
        }

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or not stmt.parallel or stmt.range.var in loops_with_lanes_inside:
                return (stmt,)
            if any(r.lanes for r in ranges_in(stmt)):
                return (stmt,)
            chains = [s for s in stmt.body if isinstance(s, For) and has_carried_scalar(stmt.body, s)]
            if not chains or any(isinstance(s, tile.Reduce) for s in tile.walk(stmt.body)):
                return (stmt,)
            extent = tile.extent_hint(stmt.range)
            factor, width = max(1, min(self.factor, extent)), 0
            message = f"unroll-and-jam by {factor}"
            if sum(map(arithmetic_ops, chains)) >= self.min_lane_ops and extent >= lanes:
                factor, width, message = lanes, lanes, f"{lanes} iterations jammed into lanes"
            return (unroll_and_jam(stmt, factor, width) if context.may_apply(self, message) else stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


def ranges_in(stmt: Stmt) -> Iterator[tile.Range]:
    """Yield every range in a statement, its own first."""
    return (r for s in tile.walk((stmt,)) for r in tile.stmt_ranges(s))


def has_carried_scalar(body: Block, loop: For) -> bool:
    """Return True if `loop` stores to a scalar buffer declared in `body`, and so carries it between steps."""
    scalars = {s.buffer for s in body if isinstance(s, Local) and not s.type.rank}
    return any(isinstance(s, Store) and s.buffer in scalars for s in loop.body)


def arithmetic_ops(stmt: Stmt) -> int:
    """Return the operations in one step of every loop in a statement, in multiply-adds."""
    exprs = (e for s in tile.walk((stmt,)) for v in tile.stmt_exprs(s) for e in v.subexprs)
    return sum(scalar.PRIMITIVES[e.primitive].cost for e in exprs if isinstance(e, scalar.PrimitiveCall))
