"""Sibling fusion: join loop nests of contractions that read the same panels of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from compiler.analysis.accesses import Accesses
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Stmt
from compiler.ir.tile.substitution import NameSupply, substitute_names, with_unique_names
from compiler.passes.base import Context, TilePass, register
from compiler.transforms.fuse import fuse, fuse_adjacent


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
        fresh = NameSupply(ir)
        local_buffers = tuple(s for s in tile.walk(ir.body) if isinstance(s, Local))  # a superset of those in use
        has_rows: dict[str, bool] = {}  # by the variable of a loop; what is fused into a loop has been asked before

        def needs_rows(loop: For) -> bool:
            if (v := loop.range.var) not in has_rows:
                table = Accesses(ir.with_body((*local_buffers, loop)))
                has_rows[v] = is_row_loop(table, v, context.machine.min_block_rows)
            return has_rows[v]

        def fuse_pair(first: Stmt, second: Stmt) -> For | None:
            """Fuse two parallel loops; None if a contraction needs the loop for its rows."""
            if not (isinstance(first, For) and isinstance(second, For) and first.parallel and second.parallel):
                return None
            if needs_rows(first) or needs_rows(second):
                return None
            fused = fuse(first, substitute_names(second, {second.range.var: first.range.var}), fresh)
            return fused if context.may_apply(self, f"sibling nest fused into %{fused.range.var}") else None

        def block(body: Block) -> Block:
            fused = fuse_adjacent(body, fuse_pair, partial(context.missed, self))
            return tuple(replace(s, body=block(s.body)) if isinstance(s, For) else s for s in fused)

        return ir.with_body(block(ir.body))


def is_row_loop(table: Accesses, v: str, min_rows: int) -> bool:
    """Return True if some contraction reads no constants, or lacks a loop of `min_rows` inside `v` that reuses them."""
    for stmt in (s for s in tile.walk(table.kernel.body) if is_contraction(s)):
        reads = [a for a in table.loads_of(stmt) if table.roles[a.buffer] == "const"]
        if not reads:
            return True
        inside = [r for r in reads[0].loops if r.var != v and r not in tile.stmt_ranges(stmt)]
        row_loops = (r for r in inside if not all(table.depends_on(a, r.var) for a in reads))
        rows = max(map(tile.extent_hint, row_loops), default=1)
        is_short = rows < min(min_rows, tile.extent_hint(table.loops[v][0]))
        if is_short and not all(table.depends_on(a, v) for a in reads):
            return True
    return False
