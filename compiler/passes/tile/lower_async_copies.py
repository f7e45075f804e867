"""Asynchronous copies as loops, for targets without them."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.scalar import Load
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile.kernel import AsyncCopy, Block, Kernel, Range, Stmt, Store, Wait, expand_stmts, walk
from compiler.ir.tile.loop_nest import wrap_in_nest
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class LowerAsyncCopies(TilePass):
    """Copy by loops where an asynchronous copy starts, and drop the waits.

    copy_async %x[%k, 0] -> %s[0] size 32  wait %s  ->  for %c in 0..32 { store %x[%k, %c], %s[%c] }
    """

    name = "lower-async-copies"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if not any(isinstance(s, (AsyncCopy, Wait)) for s in walk(ir.body)):
            return ir
        if not context.may_apply(self, "asynchronous copies become loops", required=True, remark=False):
            return ir
        fresh, types = NameSupply(ir), context.accesses(ir).types

        def rule(stmt: Stmt) -> Block:
            if isinstance(stmt, AsyncCopy):
                loops = [Range(fresh("c"), 0, n) for n in stmt.sizes]
                read, written = stmt.indices(tuple(var(r.var) for r in loops))
                value = Load(types[stmt.source].dtype, stmt.source, read)
                return wrap_in_nest(loops, (Store(stmt.target, written, value),))
            return () if isinstance(stmt, Wait) else (stmt,)

        return ir.with_body(expand_stmts(ir.body, rule))
