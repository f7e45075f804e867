"""Fetch the next row while this one is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.index import Dim, substitute, var, variables
from compiler.ir.tile import Block, For, Kernel, Reduce, Stmt
from compiler.ir.tile import Prefetch as PrefetchStmt
from compiler.passes.access import Access, Accesses, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Prefetch(TilePass):
    """parallel %i { reduce %r { x[%i, %r] }  for %j { ... } }  ->  ... for %j { prefetch x[%i + 1, %j]  ... }

    A kernel that passes over each row several times waits for memory in the first pass and leaves it idle in the others.
    The second loop over the row asks for the row after it.  Only for operands that do not stay in the second-level cache.
    """

    name = "prefetch"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
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
