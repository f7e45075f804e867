"""Scans whose elements lie side by side, so that lanes across the rows would gather and scatter."""

from __future__ import annotations

from compiler.analysis.accesses import Accesses
from compiler.ir.tile.kernel import For, Let, Range, Stmt, Store, dim_hint


def is_scan_of_rows(table: Accesses, loop: Stmt, size: int) -> bool:
    """Return True if `loop` runs in order along contiguous rows, of which a loop around it has at least `size`."""
    rows = rows_of_scan(table, loop, size)
    return rows is not None and dim_hint(rows.extent) >= size


def rows_of_scan(table: Accesses, loop: Stmt, size: int) -> Range | None:
    """Return the parallel loop over the rows if `loop` runs in order along contiguous ones, else None.

    Blocks of `size` rows and elements are transposed at once, so that a row has at least half as many.
    """
    if not isinstance(loop, For) or loop.parallel or loop.range.var in table.parallel_loops:
        return None
    v = loop.range.var
    rows = next((r for r in reversed(table.loops[v][2]) if r.var in table.parallel_loops), None)
    if rows is None or 2 * dim_hint(loop.range.extent) < size:
        return None
    outside = [a for a in table.all if a.stmt in loop.body and table.roles[a.buffer] != "local"]
    is_row = [table.stride(a, v) == 1 and 2 * (table.stride(a, rows.var) or 0) >= size for a in outside]
    stored = {a.buffer for a in outside if a.is_store}
    is_scan = (
        all(isinstance(s, (Let, Store)) for s in loop.body)
        and any(is_row)
        and all(f or table.stride(a, rows.var) in (0, 1) for f, a in zip(is_row, outside, strict=True))
        and not any(a.is_masked or (a.buffer in stored and not a.is_store) for a in outside)
    )
    return rows if is_scan else None
