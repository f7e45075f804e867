"""Fetch the next row, or the next panel of weights, while this one is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from compiler.analysis.accesses import Access, Accesses, buffer_bytes, is_contraction, perfect_nest
from compiler.cost.machine import Machine
from compiler.ir.symbolic.index_expr import Dim, substitute, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import ANY_REUSE, Block, For, Kernel, Reduce, ReuseRange, Stmt, dim_hint, has_partial_rows
from compiler.ir.tile.kernel import Prefetch as PrefetchStmt
from compiler.passes.base import Context, TilePass, register

PrefetchRequests: TypeAlias = dict[int, dict[tuple[str, int], PrefetchStmt]]
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
    tiles may have fewer rows, either is done in its own: `prefetch w[%j, %k + 128] level 2 reuse 7..`.
    Not where a loop of the program runs the kernel and they are at most one `share`th of the last cache: the next step finds them
    there, and the hardware fetches those in time.
    """

    name = "prefetch"
    exact = True
    distance: int = 16384
    l1_distance: int = 4096
    cache_divisor: int = 8

    def run(self, ir: Kernel, context: Context) -> Kernel:
        made = self.prefetch_rows(ir, context)
        return made if self.stays_in_cache(ir, context) else self.prefetch_panels(made, context)

    def stays_in_cache(self, ir: Kernel, context: Context) -> bool:
        """Whether a loop of the program reads the kernel's constants again before they leave the last cache."""
        constants = sum(dim_hint(p.type.nbytes) for p in ir.params if p.role == "const")
        if not constants or context.kernel not in context.repeated_kernels:
            return False
        near = constants * self.cache_divisor <= (context.machine or Machine()).l3
        if near:
            context.missed(self, "a loop runs the kernel again before its constants leave the cache")
        return near

    def prefetch_panels(self, ir: Kernel, context: Context) -> Kernel:
        """Ask for what comes later in each packed constant that is walked from end to end."""
        machine, table = context.machine or Machine(), context.accesses(ir)
        requests: PrefetchRequests = {}
        for a in table.all:
            buffer_type = table.types[a.buffer]
            if table.roles[a.buffer] != "const" or not is_contraction(a.stmt) or buffer_bytes(table, a) <= machine.l1:
                continue
            lane = next((r for r in a.loops if r.lanes and table.depends_on(a, r.var)), None)
            depth = a.loops[-1]
            if lane is None or table.stride(a, depth.var) != lane.tile:
                continue
            for number, (level, ahead, uses) in enumerate(self.choose_distances(table, a, machine)):
                steps = ahead // (lane.tile * buffer_type.dtype.bytes)
                place = tuple(substitute(d, {depth.var: var(depth.var) + steps}) for d in a.index)
                requests.setdefault(id(a.stmt), {})[a.buffer, number] = PrefetchStmt(a.buffer, place, level, uses)
                context.applied(self, f"%{a.buffer} is fetched to cache {level} {steps} steps ahead")
            context.propose(self, None, replace(self, distance=2 * self.distance))
        return ir.with_body(insert_prefetches(ir.body, requests)) if requests else ir

    def choose_distances(self, table: Accesses, a: Access, machine: Machine) -> list[tuple[int, int, ReuseRange]]:
        """To which cache to fetch, how many bytes ahead, and in which tiles: those whose rows multiply a line for longer than memory
        takes to bring one wait for it in another place than those with fewer.
        """
        rows = [r for r in a.loops if not table.depends_on(a, r.var)]
        max_rows = prod(r.tile for r in rows)
        fewest_rows = 1 if any(has_partial_rows(r) for r in rows) else max_rows
        min_rows = machine.fma_per_cycle * machine.vector_bits // 8 // machine.l3_bytes_per_cycle + 1
        if max_rows < min_rows:
            return [(1, self.distance, ANY_REUSE)]
        if min_rows <= fewest_rows:
            return [(2, self.distance, ANY_REUSE), (1, self.l1_distance, ANY_REUSE)]
        return [
            (1, self.distance, (1, min_rows)),
            (2, self.distance, (min_rows, None)),
            (1, self.l1_distance, (min_rows, None)),
        ]

    def prefetch_rows(self, ir: Kernel, context: Context) -> Kernel:
        """Ask for the next row of operands that are walked several times."""
        cache = (context.machine or Machine()).l2
        nest = perfect_nest(ir.body)
        if not nest or any(tile.stmt_ranges(s) and tile.stmt_ranges(s)[0].lanes for s in nest):
            return ir
        row = nest[-1]
        table = context.accesses(ir)
        large = {p.name for p in ir.params if p.role == "in" and dim_hint(p.type.nbytes) > cache}
        wanted = [a for a in table.all if a.buffer in large and self.is_row_access(table, a, row)]
        loops = [s for s in row.body if isinstance(s, (For, Reduce))]
        requests: PrefetchRequests = {}
        for a in wanted:
            source = a.loops[-1]
            first = next((k for k, s in enumerate(loops) if source in tile.stmt_ranges(s)), None)
            if first is None or first + 1 >= len(loops):
                continue
            target = loops[first + 1]
            (into, *more) = tile.stmt_ranges(target)
            if more or (into.lo, into.hi, into.tile) != (source.lo, source.hi, source.tile):
                continue
            if any((a.buffer, 0) in chosen for chosen in requests.values()):
                continue
            moved: dict[str, Dim] = {source.var: var(into.var), row.range.var: var(row.range.var) + row.range.tile}
            ahead = PrefetchStmt(a.buffer, tuple(substitute(d, moved) for d in a.index))
            requests.setdefault(id(target), {})[a.buffer, 0] = ahead
            context.applied(self, f"%{a.buffer}: the next row is fetched in the loop over %{into.var}")
            context.propose(self, None)
        return ir.with_body(insert_prefetches(ir.body, requests)) if requests else ir

    @staticmethod
    def is_row_access(table: Accesses, a: Access, row: For) -> bool:
        """Whether the access goes along a row that `row` picks, in one lane loop directly inside it."""
        source = a.loops[-1]
        used = {v for d in a.index for v in variables(d)}
        return bool(source.lanes) and not a.is_store and row.range.var in used and source.var in used


def insert_prefetches(body: Block, requests: PrefetchRequests) -> Block:
    """`body` with prefetches at the start of the loops that ask for them."""

    def one(s: Stmt) -> Stmt:
        if not isinstance(s, (For, Reduce)):
            return s
        return replace(s, body=(*requests.get(id(s), {}).values(), *insert_prefetches(s.body, requests)))

    return tuple(one(s) for s in body)
