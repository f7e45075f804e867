"""Fetch the next row, or the next panel of weights, while this one is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.index import Dim, substitute, var, variables
from compiler.ir.tile import Block, For, Kernel, Reduce, Stmt
from compiler.ir.tile import Prefetch as PrefetchStmt
from compiler.passes.access import Access, Accesses, contraction, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Prefetch(TilePass):
    """parallel %i { reduce %r { x[%i, %r] }  for %j { ... } }  ->  ... for %j { prefetch x[%i + 1, %j]  ... }

    A kernel that passes over each row several times waits for memory in the first pass and leaves it idle in the others.
    The second loop over the row asks for the row after it.  Only for operands that do not stay in the second-level cache.

    for %j tile 48 { for %i in 0..32 tile 8 { reduce %k { x[%i, %k] * w[%j, %k] } } }
    ->  for %j tile 48 { for %i in 0..32 tile 8 { reduce %k { prefetch w[%j + 48, 192*(%i//8) + %k//4]  ... } } }

    Each of the 4 blocks of rows asks for its share of the next panel of constants, so that the panel is near when its turn
    comes.  Only for few `blocks`: many of them hide the wait for a panel, and asking costs more.
    """

    name = "prefetch"
    exact = True
    blocks: int = 4

    def run(self, ir: Kernel, context: Context) -> Kernel:
        return self.panels(self.rows(ir, context), context)

    def panels(self, ir: Kernel, context: Context) -> Kernel:
        """Ask for the next panel of a packed constant that does not stay in the second-level cache."""
        cache = (context.machine or Machine()).l2
        nest = nested_fors(ir.body)
        if len(nest) != 2:
            return ir  # a loop outside reads the panels again, from the last cache
        row, across = nest[-1].range, nest[-2].range
        table = Accesses(ir)
        for a in table.all:
            depth = a.loops[-1]
            held = table.types[a.buffer]
            used = {v for d in a.index for v in variables(d)}
            if table.roles[a.buffer] != "const" or not contraction(a.stmt) or used != {across.var, depth.var}:
                continue
            if not across.lanes or held.layout is None or not isinstance(held.nbytes, int) or held.nbytes <= cache:
                continue
            if not isinstance(row.extent, int) or not isinstance(depth.extent, int):
                continue
            blocks = -(-row.extent // row.tile)
            if blocks > self.blocks:
                continue
            share = -(-depth.extent // blocks)
            start = (var(row.var) - row.lo) // row.tile * share
            moved: dict[str, Dim] = {
                across.var: var(across.var) + across.tile,
                depth.var: start + var(depth.var) // blocks,
            }
            ahead = PrefetchStmt(a.buffer, tuple(substitute(d, moved) for d in a.index))
            context.applied(self, f"%{a.buffer}: each block of rows fetches {share} steps of the next panel")
            return ir.with_body(insert(ir.body, {id(a.stmt): {a.buffer: ahead}}))
        return ir

    def rows(self, ir: Kernel, context: Context) -> Kernel:
        """Ask for the next row of operands that are walked several times."""
        cache = (context.machine or Machine()).l2
        nest = nested_fors(ir.body)
        if not nest or any(tile.ranges(s) and tile.ranges(s)[0].lanes for s in nest):
            return ir
        row = nest[-1]
        table = Accesses(ir)
        large = {
            p.name for p in ir.params if p.role == "in" and isinstance(p.type.nbytes, int) and p.type.nbytes > cache
        }
        wanted = [a for a in table.all if a.buffer in large and self.walks_row(table, a, row)]
        loops = [s for s in row.body if isinstance(s, (For, Reduce))]
        asked: dict[int, dict[str, PrefetchStmt]] = {}
        for a in wanted:
            source = a.loops[-1]
            first = next((k for k, s in enumerate(loops) if source in tile.ranges(s)), None)
            if first is None or first + 1 >= len(loops):
                continue
            target = loops[first + 1]
            (into, *more) = tile.ranges(target)
            if more or (into.lo, into.hi, into.tile) != (source.lo, source.hi, source.tile):
                continue
            if any(a.buffer in chosen for chosen in asked.values()):
                continue
            moved: dict[str, Dim] = {source.var: var(into.var), row.range.var: var(row.range.var) + row.range.tile}
            ahead = PrefetchStmt(a.buffer, tuple(substitute(d, moved) for d in a.index))
            asked.setdefault(id(target), {})[a.buffer] = ahead
            context.applied(self, f"%{a.buffer}: the next row is fetched in the loop over %{into.var}")
        return ir.with_body(insert(ir.body, asked)) if asked else ir

    @staticmethod
    def walks_row(table: Accesses, a: Access, row: For) -> bool:
        """Whether the access goes along a row that `row` picks, in one lane loop directly inside it."""
        source = a.loops[-1]
        used = {v for d in a.index for v in variables(d)}
        return bool(source.lanes) and not a.is_store and row.range.var in used and source.var in used


def insert(body: Block, asked: dict[int, dict[str, PrefetchStmt]]) -> Block:
    """`body` with prefetches at the start of the loops that ask for them."""

    def one(s: Stmt) -> Stmt:
        if not isinstance(s, (For, Reduce)):
            return s
        ahead = tuple(asked.get(id(s), {}).values())
        return replace(s, body=(*ahead, *insert(s.body, asked)))

    return tuple(one(s) for s in body)
