"""Loops that walk over rows of memory, inside a loop over its columns."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.analysis.accesses import Access, Accesses
from compiler.ir.tile.kernel import Range, Stmt, dim_hint, extent_hint, iteration_count_hint, walk


def walked_bytes(table: Accesses, columns: Range, inside: Stmt) -> int:
    """Return the bytes of the largest array whose rows, contiguous along `columns`, loops of a statement inside walk over.

    Each of these loops steps over all that the shorter steps reach.  0 if some array is read otherwise, as in windows that overlap.

    for %c in 0..512 { reduce add %r in 0..900 { yield %x[%r, %c] } }     512 * 900 * 4
    """
    statements = {id(s) for s in walk((inside,))}
    arrays = [a for a in table.all if id(a.consumer) in statements and columns in a.loops]
    rows = [a for a in arrays if table.roles[a.buffer] in ("in", "out") and table.stride(a, columns.var) == 1]
    loops = {a: [r for r in a.loops[a.loops.index(columns) + 1 :] if table.depends_on(a, r.var)] for a in rows}
    if not all(is_walk(table, a, dim_hint(columns.extent), loops[a]) for a in rows):
        return 0
    sizes = (iteration_count_hint((columns, *loops[a])) * table.types[a.buffer].dtype.bytes for a in rows if loops[a])
    return max(sizes, default=0)


def is_walk(table: Accesses, a: Access, reached: int, loops: Sequence[Range]) -> bool:
    """Return True if each of `loops` steps over the elements that `a` reaches in those of shorter steps, `reached` in none."""
    for step, r in sorted(((abs(table.stride(a, r.var) or 0), r) for r in loops), key=lambda x: x[0]):
        if step < reached:
            return False
        reached = step * extent_hint(r)
    return True
