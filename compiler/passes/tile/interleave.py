"""Take chains of dependent steps side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ir import scalar, tile
from compiler.ir.tile import Block, For, Kernel, Local, Stmt, Store
from compiler.passes.base import Context, TilePass, register
from compiler.passes.lanes import lanes_for
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Interleave(TilePass):
    """parallel %i in 0..64 { local %c  for %k { ... %c ... } }  ->  parallel %i in 0..64 tile 4 { ... }

    A scan waits at each step for the one before; other rows have nothing to wait for.  Of rows that have no lanes, `rows` are
    taken at once, each in registers of its own; from `heavy` operations per step on it pays to gather them into lanes.
    """

    name = "interleave"
    exact = True
    rows: int = 4
    heavy: int = 24

    def run(self, ir: Kernel, context: Context) -> Kernel:
        lanes = lanes_for(ir, context.machine or Machine())
        across = {r.var for s in tile.walk(ir.body) if isinstance(s, For) and s.range.lanes for r in ranges_in(s)}

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or not stmt.parallel or stmt.range.var in across:
                return (stmt,)
            if any(r.lanes for r in ranges_in(stmt)):
                return (stmt,)
            chains = [s for s in stmt.body if isinstance(s, For) and carries(stmt.body, s)]
            if not chains or any(isinstance(s, tile.Reduce) for s in tile.walk(stmt.body)):
                return (stmt,)
            extent = tile.known_extent(stmt.range)
            if sum(map(arithmetic, chains)) >= self.heavy and extent >= lanes:
                context.applied(self, f"{lanes} chains across the lanes of a register")
                return (replace(stmt, range=stmt.range.with_(tile=lanes, lanes=lanes)),)
            context.applied(self, f"{min(self.rows, extent)} chains side by side")
            return (replace(stmt, range=stmt.range.with_(tile=max(1, min(self.rows, extent)))),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


def ranges_in(stmt: Stmt) -> Iterator[tile.Range]:
    """Every loop header in a statement, its own first."""
    return (r for s in tile.walk((stmt,)) for r in tile.ranges(s))


def carries(body: Block, loop: For) -> bool:
    """Whether steps of `loop` pass on a scalar declared beside it."""
    scalars = {s.buffer for s in body if isinstance(s, Local) and not s.type.rank}
    return any(isinstance(s, Store) and s.buffer in scalars for s in loop.body)


def arithmetic(stmt: Stmt) -> int:
    """Multiply-adds of one step of every loop in a statement."""
    calls = (e for s in tile.walk((stmt,)) for v in tile.values(s) for e in v.parts if isinstance(e, scalar.Call))
    return sum(scalar.PRIMITIVES[e.primitive].cost for e in calls)
