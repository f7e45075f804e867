"""Write large results past the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.atoms import MANY
from compiler.ir.index import Dim, sizes, substitute
from compiler.ir.tile import Block, Kernel, Stmt, Store, known
from compiler.passes.base import Context, TilePass, register
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Stream(TilePass):
    """store v, %y[%i]  ->  stream v, %y[%i]   for outputs larger than the last cache holds

    A plain store first reads the line it overwrites; a streaming store does not, which saves a third of the traffic of y = f(x).
    What may be small is not written past the cache, where its reader would miss it.
    """

    name = "stream"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        cache = (context.machine or Machine()).l3
        read = {a.buffer for a in context.accesses(ir).all if not a.is_store}
        large = {
            p.name
            for p in ir.params
            if p.role == "out" and p.name not in read and known(if_small(p.type.nbytes)) > cache // 2
        }
        if not large:
            return ir

        def rule(stmt: Stmt) -> Block:
            return (replace(stmt, stream=True),) if isinstance(stmt, Store) and stmt.buffer in large else (stmt,)

        context.applied(self, f"{', '.join(sorted('%' + n for n in large))} written past the cache")
        context.offer(self, None)
        return ir.with_body(tile.expand_stmts(ir.body, rule))


def if_small(d: Dim) -> Dim:
    """`d` with those sizes that may be small as small as they may be, yet not zero, by which nothing can be divided."""
    return substitute(d, {s.name: max(s.low, 1) for s in sizes(d) if s.low <= MANY})
