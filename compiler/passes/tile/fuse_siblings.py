"""Join the nests of contractions that read the same panels of weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses, is_contraction
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Stmt
from compiler.ir.tile.substitution import substitute_names, with_unique_names
from compiler.passes.base import Context, TilePass, register

MIN_BLOCK_ROWS = 4
"""Steps that a loop needs to be worth a block of accumulators of its own."""


@register
@dataclass(frozen=True)
class FuseSiblings(TilePass):
    """parallel %i in 0..64 { parallel %j in 0..2 { f(%i, %j) } }   parallel %k in 0..64 { parallel %l in 0..5 { g(%k, %l) } }
    ->  parallel %i in 0..64 { parallel %j in 0..2 { f(%i, %j) }  parallel %l in 0..5 { g(%i, %l) } }

    The parts of a convolution at the edges and in the middle of an image: a panel of weights then stays near for all of them, and
    so do rows of the image.  Each step stores at an index of its own.  A loop whose rows a contraction needs for its block
    of accumulators, because those inside are short, stays its own.
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
                    context.applied(self, f"%{fused.range.var} walks two nests")
                else:
                    out.append(stmt)
            return tuple(replace(s, body=block(s.body)) if isinstance(s, For) else s for s in out)

        return ir.with_body(block(ir.body))


def fuse_pair(first: Stmt, second: Stmt, kernel: Kernel) -> For | None:
    """One loop around what two hold; None where its steps would not stand for themselves, or where one needs it for its rows."""
    if not (isinstance(first, For) and isinstance(second, For) and first.parallel and second.parallel):
        return None
    if first.range != second.range.with_(var=first.range.var):
        return None
    v = first.range.var
    second = substitute_names(second, {second.range.var: v})
    local_buffers = tuple(s for s in tile.walk(kernel.body) if isinstance(s, Local))  # what both may use, and more
    tables = [Accesses(kernel.with_body((*local_buffers, s))) for s in (first, second)]
    if any(is_row_loop(table, v) for table in tables):
        return None
    stored = {a.buffer for table in tables for a in table.all if a.is_store}
    if not all(
        are_steps_disjoint([a for table in tables for a in table.all if a.buffer == name], v) for name in stored
    ):
        return None
    return replace(first, body=(*first.body, *second.body))


def are_steps_disjoint(accesses: list[Access], v: str) -> bool:
    """Whether every step of `v` reads and writes at an index of its own."""
    same = (set(dims) for dims in zip(*(a.index for a in accesses), strict=True))
    return any(len(dims) == 1 and variables(next(iter(dims))) == {v} for dims in same)


def is_row_loop(table: Accesses, v: str) -> bool:
    """Whether some contraction adds along no constants in loops inside `v` that are as long as it should be."""
    for stmt in (s for s in tile.walk(table.kernel.body) if is_contraction(s)):
        reads = [a for a in table.all if a.stmt is stmt and table.roles[a.buffer] == "const"]
        if not reads:
            return True
        inside = [r for r in reads[0].loops if r.var != v and r not in tile.stmt_ranges(stmt)]
        rows = max(
            (tile.extent_hint(r) for r in inside if not all(table.depends_on(a, r.var) for a in reads)), default=1
        )
        if rows < min(MIN_BLOCK_ROWS, tile.extent_hint(table.loops[v][0])) and not all(
            table.depends_on(a, v) for a in reads
        ):
            return True
    return False
