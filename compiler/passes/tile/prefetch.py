"""Software prefetching of the next row, or of weights ahead of their use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import NamedTuple, TypeAlias

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.cost.issue import operation_cost
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir.symbolic.index_expr import Dim, substitute, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import (
    ANY_REUSE,
    Block,
    For,
    Kernel,
    Range,
    Reduce,
    ReuseRange,
    Stmt,
    dim_hint,
    extent_hint,
    has_partial_rows,
)
from compiler.ir.tile.kernel import Prefetch as PrefetchStmt
from compiler.ir.tile.loop_nest import perfect_nest, trip_count
from compiler.passes.base import Context, TilePass, from_machine, register

PrefetchRequests: TypeAlias = dict[int, dict[tuple[str, int], PrefetchStmt]]
"""Prefetches to insert at the start of a loop's body: `id` of the loop -> (buffer, number) -> statement."""


FAR_LINES = 8
"""Most cache lines between what one step reads and the next that a CPU foresees by itself: 13 and more gain (Emerald Rapids)."""


class Panel(NamedTuple):
    """Memory that `access` reads contiguously: `bytes` for each index of `loop`, the innermost loop for which that holds."""

    access: Access
    loop: Range
    bytes: int


@register
@dataclass(frozen=True)
class Prefetch(TilePass):
    """Prefetch the next row of an operand, and weights ahead of their use.

    parallel %i { reduce %r { x[%i, %r] }  for %j { ... } }  ->  ... for %j { prefetch x[%i + 1, %j]  ... }

    A kernel that reads each row several times waits for memory in the first loop and leaves it idle in the others.  The
    second loop over the row prefetches the next row.  Applies to operands larger than the L2 cache
    of which it holds two rows.

    for %j tile 48 { for %i tile 8 { reduce %k { x[%i, %k] * w[%j, %k] } } }
    ->  for %j tile 48 { for %i tile 8 { reduce %k { prefetch w[%j, %k + 85]  ... } } }

    A packed panel of constants is prefetched `distance` bytes ahead, those of all arrays that a loop reads counted together, if
    what is read of the buffer exceeds the L1 cache.
    Few rows do without where they apply more than `operations` to a line: it foresees their panels.
    If enough rows use a line to hide the latency of memory, it is prefetched to L2 at `distance` and to L1 at
    `l1_distance`: L1 has room and fill buffers for few lines.  If tiles may have fewer rows, the number of rows decides
    at run time: `prefetch w[%j, %k + 128] level 2 reuse 7..`.  Constants are not prefetched if a loop of the program runs
    the kernel and they are at most 1/`cache_divisor` of the last-level cache, where the next iteration finds them.

    Rows of an input larger than the L2 cache, far apart in memory, are prefetched `strided_steps` ahead: no CPU expects the next.

    If the inputs and constants of a program exceed the last-level cache, where the next call would find them, those that a kernel
    reads once are prefetched whatever their size, such as the keys of earlier tokens and the scales of weights.
    """

    name = "prefetch"
    exact = True
    distance: int = from_machine("prefetch_distance")
    l1_distance: int = from_machine("l1_prefetch_distance")
    cache_divisor: int = from_machine("resident_constants")
    strided_steps: int = from_machine("strided_prefetch_steps")
    operations: int = from_machine("prefetched_operations")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        result = self.prefetch_rows(ir, context)
        return result if self.stays_in_cache(ir, context) else self.prefetch_panels(result, context)

    def stays_in_cache(self, ir: Kernel, context: Context) -> bool:
        """Return True if a loop of the program rereads the kernel's constants from the last-level cache."""
        constants = sum(dim_hint(p.type.nbytes) for p in ir.params if p.role == "const")
        if not constants or not context.program or context.kernel not in context.program.looped_kernels:
            return False
        near = constants * self.cache_divisor <= context.machine.l3
        if near:
            context.missed(self, "constants stay in the last-level cache between iterations")
        return near

    def prefetch_panels(self, ir: Kernel, context: Context) -> Kernel:
        """Prefetch constants, and inputs that are in no cache, that contractions read contiguously."""
        machine, table = context.machine, context.accesses(ir)
        panels = list(self.panels(table, context))
        step_bytes = Counter[str]()
        for p in panels:
            step_bytes[p.loop.var] += p.bytes
        requests: PrefetchRequests = {}

        def request(
            a: Access, loop: Range, steps: int, number: int, level: int = 1, reuse: ReuseRange = ANY_REUSE
        ) -> None:
            message = f"%{a.buffer} prefetched to L{level}, distance {steps} steps"
            if steps and context.may_apply(self, message):
                index = tuple(substitute(d, {loop.var: var(loop.var) + steps}) for d in a.index)
                chosen = requests.setdefault(id(table.loops[a.loops[-1].var][1]), {})
                chosen[a.buffer, number] = PrefetchStmt(a.buffer, index, level, reuse)

        for p in panels:
            a, loop = p.access, p.loop
            for number, (level, distance, reuse) in enumerate(self.choose_distances(table, a, machine)):
                steps = distance // (step_bytes[loop.var] * loop.tile) * loop.tile
                request(a, loop, steps, number, level, reuse)
            context.propose(self, None, replace(self, distance=2 * self.distance))
        for a in filter(partial(is_strided, table, machine), table.all):
            request(a, a.loops[-1], self.strided_steps, -1)
        return ir.with_body(insert_prefetches(ir.body, requests)) if requests else ir

    def panels(self, table: Accesses, context: Context) -> Iterator[Panel]:
        """Yield what contractions read contiguously of arrays that are in no cache: large constants, and what is read once of any."""
        distant = context.distant_params
        for a in table.all:
            is_large = table.roles[a.buffer] == "const" and buffer_bytes(table, a) > context.machine.l1
            if is_contraction(a.stmt) and (is_large or (a.buffer in distant and is_read_once(table, a))):
                yield from panel(table, a)

    def choose_distances(self, table: Accesses, a: Access, machine: Machine) -> list[tuple[int, int, ReuseRange]]:
        """Return (cache level, distance in bytes, rows per tile that it is for) of the prefetches for an operand.

        L2 comes first if the rows of a tile use a line for longer than L3 takes to deliver it.
        """
        rows = [r for r in a.loops if not table.depends_on(a, r.var)]
        max_rows = prod(r.tile for r in rows)
        fewest_rows = 1 if any(has_partial_rows(r) for r in rows) else max_rows
        min_rows = machine.fma_per_cycle * machine.vector_bits // 8 // machine.l3_bytes_per_cycle + 1
        if max_rows < min_rows:
            waits = max_rows * operations_per_line(table, a, machine) <= self.operations
            return [(1, self.distance, ANY_REUSE)] if waits else []
        if min_rows <= fewest_rows:
            return [(2, self.distance, ANY_REUSE), (1, self.l1_distance, ANY_REUSE)]
        return [
            (1, self.distance, (1, min_rows)),
            (2, self.distance, (min_rows, None)),
            (1, self.l1_distance, (min_rows, None)),
        ]

    def prefetch_rows(self, ir: Kernel, context: Context) -> Kernel:
        """Prefetch the next row of operands that several loops over a row read."""
        cache = context.machine.l2
        nest = perfect_nest(ir.body)
        if not nest or any(tile.stmt_ranges(s) and tile.stmt_ranges(s)[0].lanes for s in nest):
            return ir
        row = nest[-1]
        table = context.accesses(ir)
        large = {p.name for p in ir.params if p.role == "in" and dim_hint(p.type.nbytes) > cache}
        row_accesses = [a for a in table.all if a.buffer in large and is_row_access(a, row)]
        loops = [s for s in row.body if isinstance(s, (For, Reduce))]
        requests: PrefetchRequests = {}
        for a in row_accesses:
            source = a.loops[-1]
            first = next((k for k, s in enumerate(loops) if tile.stmt_ranges(s) == (source,)), None)
            if first is None or first + 1 >= len(loops):
                continue
            target = loops[first + 1]
            if 2 * extent_hint(source) * table.types[a.buffer].dtype.bytes > cache:
                continue
            (into, *more) = tile.stmt_ranges(target)
            if more or (into.lo, into.hi, into.tile) != (source.lo, source.hi, source.tile):
                continue
            if any((a.buffer, 0) in chosen for chosen in requests.values()):
                continue
            if not context.may_apply(self, f"%{a.buffer}: next row prefetched in the loop over %{into.var}"):
                continue
            moved: dict[str, Dim] = {source.var: var(into.var), row.range.var: var(row.range.var) + row.range.tile}
            prefetch = PrefetchStmt(a.buffer, tuple(substitute(d, moved) for d in a.index))
            requests.setdefault(id(target), {})[a.buffer, 0] = prefetch
            context.propose(self, None)
        return ir.with_body(insert_prefetches(ir.body, requests)) if requests else ir


def operations_per_line(table: Accesses, a: Access, machine: Machine) -> float:
    """Return the vector operations of a step of a contraction for each cache line that it reads of an operand, for one row."""
    lanes = next((r.lanes for r in a.loops if r.lanes), 1)
    line = lanes * table.types[a.buffer].dtype.bytes / CACHE_LINE_BYTES
    return operations_in_step(a.stmt, machine) / line


def operations_in_step(s: Stmt, machine: Machine) -> int:
    """Return the operations of a step of a statement, with those of the loops inside."""
    nested = ((tile.stmt_ranges(t), operations_in_step(t, machine)) for t in tile.stmt_body(s))
    own = sum(operation_cost(e.primitive, machine) for value in tile.stmt_exprs(s) for e in value.calls)
    return own + sum(prod(map(extent_hint, ranges)) * operations for ranges, operations in nested)


def is_row_access(a: Access, row: For) -> bool:
    """Return True if a load of a lane loop runs along a row that `row` selects, and no data decides where."""
    source = a.loops[-1]
    used = {v for d in a.index for v in variables(d)}
    is_affine = used <= {r.var for r in a.loops}
    return bool(source.lanes) and not a.is_store and is_affine and row.range.var in used and source.var in used


def is_strided(table: Accesses, machine: Machine, a: Access) -> bool:
    """Return True if steps of a contraction read vectors of a large input that lie far apart in memory, one step and the next."""
    if not is_contraction(a.stmt) or table.roles[a.buffer] not in ("in", "inout") or a.is_masked:
        return False
    depth, stride = a.loops[-1], table.stride(a, a.loops[-1].var)
    lane = next((r for r in a.loops if r.lanes and table.stride(a, r.var) == 1), None)
    if lane is None or lane is depth or not isinstance(stride, int):
        return False
    far = (stride - lane.tile) * table.types[a.buffer].dtype.bytes > FAR_LINES * CACHE_LINE_BYTES
    return far and buffer_bytes(table, a) > machine.l2


def is_read_once(table: Accesses, a: Access) -> bool:
    """Return True if no loop reads what `a` has read before, other than in one tile."""
    return all(table.depends_on(a, r.var) or trip_count(r) == 1 for r in a.loops)


def panel(table: Accesses, a: Access) -> Iterator[Panel]:
    """Yield the panel of `a`, if there is one.

    An index has the vectors of a row, the rows that unrolled steps of a reduction inside read one by one, or what a reduction with
    lanes reads once.
    """
    depth, size = a.loops[-1], table.types[a.buffer].dtype.bytes
    lane = next((r for r in a.loops if r.lanes and table.depends_on(a, r.var)), None)
    if lane is None:
        return
    if lane is not depth and table.stride(a, depth.var) == lane.tile:
        yield Panel(a, depth, lane.tile * size)
        return
    outer = next((r for r in reversed(a.loops[:-1]) if table.depends_on(a, r.var) or trip_count(r) != 1), lane)
    stride, extent = table.stride(a, outer.var), depth.extent
    if outer is lane or not isinstance(stride, int) or not isinstance(extent, int) or stride < 1:
        return
    rows, rest = divmod(stride, lane.tile)
    is_row = lane is depth and table.stride(a, depth.var) == 1 and stride == extent and is_read_once(table, a)
    if is_row or (lane is not depth and not rest and extent % rows == 0 and depth.unroll % (extent // rows) == 0):
        yield Panel(a, outer, stride * size)


def insert_prefetches(body: Block, requests: PrefetchRequests) -> Block:
    """Insert the requested prefetches at the start of loop bodies."""

    def one(s: Stmt) -> Stmt:
        if not isinstance(s, (For, Reduce)):
            return s
        return replace(s, body=(*requests.get(id(s), {}).values(), *insert_prefetches(s.body, requests)))

    return tuple(one(s) for s in body)
