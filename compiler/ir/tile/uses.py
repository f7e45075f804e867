"""Which values and loop variables statements read."""

from __future__ import annotations

from compiler.ir.scalar import Expr
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import BoundsCheck, Prefetch, Stmt, Store


def used_names(stmt: Stmt) -> set[str]:
    """Names of values that `stmt` or anything inside it reads."""
    found: set[str] = set()
    for s in tile.walk((stmt,)):
        dims: list[Dim] = [d for r in tile.stmt_ranges(s) for d in (r.lo, r.hi)]
        if isinstance(s, (Store, Prefetch)):
            dims += s.index
        if isinstance(s, BoundsCheck):
            found.add(s.name)
            dims += (s.low, s.high)
        found.update(*map(variables, dims), *(value.used_names for value in tile.stmt_exprs(s)))
    return found


def names_read(e: Expr) -> frozenset[str]:
    """Loop variables, bound names and buffers that `e` reads."""
    return e.used_names.union(x.buffer for x in e.loads)
