"""Names that statements and expressions of Tile IR read."""

from __future__ import annotations

from compiler.ir.scalar import Expr
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import BoundsCheck, Prefetch, Stmt, Store


def used_names(stmt: Stmt) -> set[str]:
    """Return the names of values and loop variables that `stmt` or a statement inside it reads."""
    names: set[str] = set()
    for s in tile.walk((stmt,)):
        dims: list[Dim] = [d for r in tile.stmt_ranges(s) for d in (r.lo, r.hi)]
        if isinstance(s, (Store, Prefetch)):
            dims += s.index
        if isinstance(s, BoundsCheck):
            names.add(s.name)
            dims += (s.low, s.high)
        names.update(*map(variables, dims), *(value.used_names for value in tile.stmt_exprs(s)))
    return names


def names_read(e: Expr) -> frozenset[str]:
    """Return the loop variables, values and buffers that `e` reads."""
    return e.used_names.union(x.buffer for x in e.loads)
