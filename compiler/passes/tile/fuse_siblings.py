"""Sibling fusion: join loop nests of contractions that read the same panels of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Stmt
from compiler.ir.tile.substitution import substitute_names, with_unique_names
from compiler.passes.base import Context, TilePass, register

MIN_BLOCK_ROWS = 4
"""Steps of a loop that fill the rows of a register tile; chosen empirically."""


@register
@dataclass(frozen=True)
class FuseSiblings(TilePass):
    """Fuse sibling parallel loops over the same range.

    parallel %i in 0..64 { parallel %j in 0..2 { f(%i, %j) } }   parallel %k in 0..64 { parallel %l in 0..5 { g(%k, %l) } }
    ->  parallel %i in 0..64 { parallel %j in 0..2 { f(%i, %j) }  parallel %l in 0..5 { g(%i, %l) } }

    For the parts of a convolution at the edges and in the middle of an image: a panel of weights, and rows of the image,
    then stay in cache for all of them.  Each step must access stored buffers at an index of its own.  A loop is not fused
    if a contraction needs it for the rows of its register tile, because the loops inside are short.
    """

    name = "fuse-siblings"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if not any(map(is_contraction, tile.walk(ir.body))):
            return ir
        ir = with_unique_names(ir)

        def block(body: Block) -> Block:
            out: list[Stmt] = []
            for stmt in body:
                fused = fuse_pair(out[-1], stmt, ir) if out else None
                if fused is not None:
                    out[-1] = fused
                    context.applied(self, f"fused sibling nests over %{fused.range.var}")
                else:
                    out.append(stmt)
            return tuple(replace(s, body=block(s.body)) if isinstance(s, For) else s for s in out)

        return ir.with_body(block(ir.body))


def fuse_pair(first: Stmt, second: Stmt, kernel: Kernel) -> For | None:
    """Fuse two loops; None if steps would depend on each other, or a contraction needs the loop for its rows."""
    if not (isinstance(first, For) and isinstance(second, For) and first.parallel and second.parallel):
        return None
    if first.range != second.range.with_(var=first.range.var):
        return None
    v = first.range.var
    second = substitute_names(second, {second.range.var: v})
    local_buffers = tuple(s for s in tile.walk(kernel.body) if isinstance(s, Local))  # a superset of those in use
    tables = [Accesses(kernel.with_body((*local_buffers, s))) for s in (first, second)]
    if any(is_row_loop(table, v) for table in tables):
        return None
    stored = {a.buffer for table in tables for a in table.all if a.is_store}
    accesses = [a for table in tables for a in table.all]
    if not all(are_steps_disjoint([a for a in accesses if a.buffer == name], v) for name in stored):
        return None
    return replace(first, body=(*first.body, *second.body))


def are_steps_disjoint(accesses: list[Access], v: str) -> bool:
    """Return True if all accesses share an index that is a function of `v` only, so that no two steps conflict."""
    same = (set(dims) for dims in zip(*(a.index for a in accesses), strict=True))
    return any(len(dims) == 1 and variables(next(iter(dims))) == {v} for dims in same)


def is_row_loop(table: Accesses, v: str) -> bool:
    """Return True if some contraction reads no constants, or lacks a long row loop inside `v` that reuses them."""
    for stmt in (s for s in tile.walk(table.kernel.body) if is_contraction(s)):
        reads = [a for a in table.all if a.stmt is stmt and table.roles[a.buffer] == "const"]
        if not reads:
            return True
        inside = [r for r in reads[0].loops if r.var != v and r not in tile.stmt_ranges(stmt)]
        row_loops = (r for r in inside if not all(table.depends_on(a, r.var) for a in reads))
        rows = max(map(tile.extent_hint, row_loops), default=1)
        is_short = rows < min(MIN_BLOCK_ROWS, tile.extent_hint(table.loops[v][0]))
        if is_short and not all(table.depends_on(a, v) for a in reads):
            return True
    return False
