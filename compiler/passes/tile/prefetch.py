"""Fetch the next row, or the next panel of weights, while this one is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from compiler.ir import tile
from compiler.ir.index import Dim, substitute, var, variables
from compiler.ir.tile import ANY_USES, Block, For, Kernel, Reduce, Stmt, Uses, known, leaves_rows
from compiler.ir.tile import Prefetch as PrefetchStmt
from compiler.passes.access import Access, Accesses, contraction, nested_fors, size_of
from compiler.passes.base import Context, TilePass, register
from compiler.perf.machine import Machine

Asked: TypeAlias = dict[int, dict[tuple[str, int], PrefetchStmt]]
"""What the body of a loop begins with, by the loop's identity: the prefetches for each buffer, numbered."""


@register
@dataclass(frozen=True)
class Prefetch(TilePass):
    """parallel %i { reduce %r { x[%i, %r] }  for %j { ... } }  ->  ... for %j { prefetch x[%i + 1, %j]  ... }

    A kernel that passes over each row several times waits for memory in the first pass and leaves it idle in the others.
    The second loop over the row asks for the row after it.  Only for operands that do not stay in the second-level cache.

    for %j tile 48 { for %i tile 8 { reduce %k { x[%i, %k] * w[%j, %k] } } }
    ->  for %j tile 48 { for %i tile 8 { reduce %k { prefetch w[%j, %k + 85]  ... } } }

    A panel of constants is fetched `ahead` bytes before its turn: larger ones than the first-level cache are walked once before they
    leave it, and come from memory when a network is run again.  Where rows multiply a line for longer than memory takes to bring
    one, it waits in the second-level cache until it is `near`: the first has room and buffers for few that are on their way.  Where
    tiles may have fewer rows, either is done in its own: `prefetch w[%j, %k + 128] level 2 uses 7..`.
    Not where a loop of the program runs the kernel and they are at most one `share`th of the last cache: the next step finds them
    there, and the hardware fetches those in time.
    """

    name = "prefetch"
    exact = True
    ahead: int = 16384
    near: int = 4096
    share: int = 8

    def run(self, ir: Kernel, context: Context) -> Kernel:
        made = self.rows(ir, context)
        return made if self.stay(ir, context) else self.panels(made, context)

    def stay(self, ir: Kernel, context: Context) -> bool:
        """Whether a loop of the program reads the kernel's constants again before they leave the last cache."""
        constants = sum(known(p.type.nbytes) for p in ir.params if p.role == "const")
        if not constants or context.kernel not in context.repeated:
            return False
        near = constants * self.share <= (context.machine or Machine()).l3
        if near:
            context.missed(self, "a loop runs the kernel again before its constants leave the cache")
        return near

    def panels(self, ir: Kernel, context: Context) -> Kernel:
        """Ask for what comes later in each packed constant that is walked from end to end."""
        machine, table = context.machine or Machine(), context.accesses(ir)
        asked: Asked = {}
        for a in table.all:
            held = table.types[a.buffer]
            if table.roles[a.buffer] != "const" or not contraction(a.stmt) or size_of(table, a) <= machine.l1:
                continue
            lane = next((r for r in a.loops if r.lanes and table.follows(a, r.var)), None)
            depth = a.loops[-1]
            if lane is None or table.step(a, depth.var) != lane.tile:
                continue
            for number, (level, ahead, uses) in enumerate(self.distances(table, a, machine)):
                steps = ahead // (lane.tile * held.dtype.bytes)
                place = tuple(substitute(d, {depth.var: var(depth.var) + steps}) for d in a.index)
                asked.setdefault(id(a.stmt), {})[a.buffer, number] = PrefetchStmt(a.buffer, place, level, uses)
                context.applied(self, f"%{a.buffer} is fetched to cache {level} {steps} steps ahead")
            context.offer(self, None, replace(self, ahead=2 * self.ahead))
        return ir.with_body(insert(ir.body, asked)) if asked else ir

    def distances(self, table: Accesses, a: Access, machine: Machine) -> list[tuple[int, int, Uses]]:
        """To which cache to fetch, how many bytes ahead, and in which tiles: those whose rows multiply a line for longer than memory
        takes to bring one wait for it in another place than those with fewer.
        """
        rows = [r for r in a.loops if not table.follows(a, r.var)]
        most = prod(r.tile for r in rows)
        fewest = 1 if any(leaves_rows(r) for r in rows) else most
        many = machine.fma_per_cycle * machine.vector_bits // 8 // machine.l3_bytes_per_cycle + 1
        if most < many:
            return [(1, self.ahead, ANY_USES)]
        if many <= fewest:
            return [(2, self.ahead, ANY_USES), (1, self.near, ANY_USES)]
        return [(1, self.ahead, (1, many)), (2, self.ahead, (many, None)), (1, self.near, (many, None))]

    def rows(self, ir: Kernel, context: Context) -> Kernel:
        """Ask for the next row of operands that are walked several times."""
        cache = (context.machine or Machine()).l2
        nest = nested_fors(ir.body)
        if not nest or any(tile.ranges(s) and tile.ranges(s)[0].lanes for s in nest):
            return ir
        row = nest[-1]
        table = context.accesses(ir)
        large = {p.name for p in ir.params if p.role == "in" and known(p.type.nbytes) > cache}
        wanted = [a for a in table.all if a.buffer in large and self.walks_row(table, a, row)]
        loops = [s for s in row.body if isinstance(s, (For, Reduce))]
        asked: Asked = {}
        for a in wanted:
            source = a.loops[-1]
            first = next((k for k, s in enumerate(loops) if source in tile.ranges(s)), None)
            if first is None or first + 1 >= len(loops):
                continue
            target = loops[first + 1]
            (into, *more) = tile.ranges(target)
            if more or (into.lo, into.hi, into.tile) != (source.lo, source.hi, source.tile):
                continue
            if any((a.buffer, 0) in chosen for chosen in asked.values()):
                continue
            moved: dict[str, Dim] = {source.var: var(into.var), row.range.var: var(row.range.var) + row.range.tile}
            ahead = PrefetchStmt(a.buffer, tuple(substitute(d, moved) for d in a.index))
            asked.setdefault(id(target), {})[a.buffer, 0] = ahead
            context.applied(self, f"%{a.buffer}: the next row is fetched in the loop over %{into.var}")
            context.offer(self, None)
        return ir.with_body(insert(ir.body, asked)) if asked else ir

    @staticmethod
    def walks_row(table: Accesses, a: Access, row: For) -> bool:
        """Whether the access goes along a row that `row` picks, in one lane loop directly inside it."""
        source = a.loops[-1]
        used = {v for d in a.index for v in variables(d)}
        return bool(source.lanes) and not a.is_store and row.range.var in used and source.var in used


def insert(body: Block, asked: Asked) -> Block:
    """`body` with prefetches at the start of the loops that ask for them."""

    def one(s: Stmt) -> Stmt:
        if not isinstance(s, (For, Reduce)):
            return s
        return replace(s, body=(*asked.get(id(s), {}).values(), *insert(s.body, asked)))

    return tuple(one(s) for s in body)
