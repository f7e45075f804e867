"""Which values and loop variables statements read."""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.index import Dim, variables
from compiler.ir.tile import Check, Prefetch, Stmt, Store


def referenced(stmt: Stmt) -> set[str]:
    """Names of values that `stmt` or anything inside it reads."""
    found: set[str] = set()
    for s in tile.walk((stmt,)):
        dims: list[Dim] = [d for r in tile.ranges(s) for d in (r.lo, r.hi)]
        if isinstance(s, (Store, Prefetch)):
            dims += s.index
        if isinstance(s, Check):
            found.add(s.name)
            dims += (s.low, s.high)
        found.update(*map(variables, dims), *(value.names for value in tile.values(s)))
    return found
