"""Write large results past the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.cost.machine import Machine
from compiler.ir.symbolic.index_expr import Dim, interval
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Stmt, Store, dim_hint
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class NontemporalStores(TilePass):
    """store v, %y[%i]  ->  store v, %y[%i] nontemporal   for outputs larger than a `share`th of the last cache

    A plain store first reads the line it overwrites; a streaming store does not, which saves a third of the traffic of y = f(x).
    Others use the last cache as well: what is larger than a part of it has left it when it is read.  Of open size, each call decides.
    """

    name = "nontemporal-stores"
    exact = True
    cache_divisor: int = 4

    def run(self, ir: Kernel, context: Context) -> Kernel:
        max_bytes = (context.machine or Machine()).l3 // self.cache_divisor
        read = {a.buffer for a in context.accesses(ir).all if not a.is_store}
        written = (p for p in ir.params if p.role == "out" and p.name not in read)
        large = {
            p.name: nontemporal_condition(p.type.nbytes - max_bytes)
            for p in written
            if dim_hint(p.type.nbytes) > max_bytes
        }
        if not large:
            return ir

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Store) or stmt.buffer not in large:
                return (stmt,)
            return (replace(stmt, nontemporal=large[stmt.buffer]),)

        for name, s in large.items():
            context.applied(self, f"%{name} written past the cache{'' if isinstance(s, int) else ' if it is large'}")
        context.propose(self, None)
        return ir.with_body(tile.expand_stmts(ir.body, rule))


def nontemporal_condition(d: Dim) -> Dim:
    """`d`, or 0 where it is never negative."""
    bounds = interval(d, {})
    return 0 if bounds and bounds[0] >= 0 else d
