"""Names that statements and expressions of Tile IR read."""

from __future__ import annotations

from compiler.ir.scalar import Expr
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import BoundsCheck, Stmt


def used_names(stmt: Stmt) -> set[str]:
    """Return the names of values and loop variables that `stmt` or a statement inside it reads."""
    names: set[str] = set()
    for s in tile.walk((stmt,)):
        names.update(*map(variables, tile.stmt_dims(s)), *(value.used_names for value in tile.stmt_exprs(s)))
        if isinstance(s, BoundsCheck):
            names.add(s.name)
    return names


def names_read(e: Expr) -> frozenset[str]:
    """Return the loop variables, values and buffers that `e` reads."""
    return e.used_names.union(x.buffer for x in e.loads)
