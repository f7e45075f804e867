"""Scans whose elements lie side by side, so that lanes across the rows would gather and scatter."""

from __future__ import annotations

from compiler.analysis.accesses import Accesses
from compiler.ir.tile.kernel import For, Let, Stmt, Store, dim_hint


def is_scan_of_rows(table: Accesses, loop: Stmt, size: int) -> bool:
    """Return True if `loop` runs in order along contiguous rows, of which a loop around it has at least `size`."""
    if not isinstance(loop, For) or loop.parallel or loop.range.var in table.parallel_loops:
        return False
    v = loop.range.var
    if not all(isinstance(s, (Let, Store)) for s in loop.body):
        return False
    rows = [r for r in table.loops[v][2] if r.var in table.parallel_loops]
    if not rows or dim_hint(rows[-1].extent) < size or dim_hint(loop.range.extent) < size:
        return False
    outside = [a for a in table.all if a.stmt in loop.body and table.roles[a.buffer] != "local"]
    is_row = [table.stride(a, v) == 1 and (table.stride(a, rows[-1].var) or 0) > size for a in outside]
    stored = {a.buffer for a in outside if a.is_store}
    return (
        any(is_row)
        and all(f or table.stride(a, rows[-1].var) in (0, 1) for f, a in zip(is_row, outside, strict=True))
        and not any(a.is_masked or (a.buffer in stored and not a.is_store) for a in outside)
    )
