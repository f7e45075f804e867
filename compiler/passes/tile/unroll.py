"""Repeat the steps of short loops instead of counting them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.tile import Block, Kernel, Range, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Unroll(TilePass):
    """reduce %c in 0..64, %y in 0..3, %x in 0..3 { ... }  ->  reduce %c in 0..64, %y in 0..3 unroll 3, %x in 0..3 unroll 3 { ... }

    The innermost ranges of a reduction that hold no loop themselves are written out while they have at most `steps` steps
    together: windows of convolutions and poolings, whose addresses then are constants.
    """

    name = "unroll"
    exact = True
    steps: int = 9

    def run(self, ir: Kernel, context: Context) -> Kernel:
        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or any(tile.ranges(s) for s in stmt.body):
                return (stmt,)
            ranges = self.write_out(stmt.ranges)
            if ranges != stmt.ranges:
                context.applied(self, f"steps of %{stmt.name} written out")
                context.offer(self, None)
            return (replace(stmt, ranges=ranges),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def write_out(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """The last ranges with `unroll` set to their whole length, as long as `steps` allows."""
        out: list[Range] = []
        left = self.steps
        for r in reversed(ranges):
            steps = -(-r.extent // r.tile) if isinstance(r.extent, int) else left + 1
            left = left // max(steps, 1)
            out.append(r.with_(unroll=max(steps, 1)) if left else r)
        return tuple(reversed(out))
