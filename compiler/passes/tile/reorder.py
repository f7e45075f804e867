"""Loop interchange by memory strides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import Access, Accesses
from compiler.analysis.operand_reuse import footprint_bytes, match_contraction_reuse
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.result_stores import streams_results
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, extent_hint
from compiler.ir.tile.loop_nest import map_nests, perfect_nest
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.interchange import interchange


@register
@dataclass(frozen=True)
class Reorder(TilePass):
    """Order parallel loops by the strides of memory accesses.

    parallel %i { parallel %j { store %x[%i, %j], %y[%j, %i] } }  ->  parallel %j { parallel %i { ... } }

    The strides of stores decide, or of loads if that makes innermost strides shorter; those of its loads order the ranges
    of a reduction.  Channels go outside of overlapping windows whose shared rows would leave the L1 cache.  Loops of
    contractions that reread an operand are left to `cache-blocking`, unless results leave the caches.  Reductions are reassociated.
    """

    name = "reorder"
    cache_fraction: float = from_machine("resident_rows")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        return map_nests(self.sort_reductions(ir, context), lambda nest: self.reorder_nest(nest, context))

    def reorder_nest(self, ir: Kernel, context: Context) -> Block:
        """Reorder the loops of a kernel that is one nest."""
        nest, table = perfect_nest(ir.body), context.accesses(ir)
        if len(nest) < 2 or not all(f.parallel for f in nest):
            return ir.body
        if any(is_contraction(s) for s in tile.walk(nest[-1].body)):
            reuse = match_contraction_reuse(table, nest, context.machine.lanes(32))
            if reuse is None or (reuse.has_reuse and not streams_results(table, reuse, context.machine)):
                return ir.body
        order, why = self.stride_order(table, nest, context.machine)
        if order == nest:
            return ir.body
        if not context.may_apply(self, f"loops ordered {', '.join('%' + f.range.var for f in order)}: {why}"):
            return ir.body
        return interchange(order, nest[-1].body)

    def sort_reductions(self, ir: Kernel, context: Context) -> Kernel:
        """Order the ranges of each reduction by the strides of its loads, largest outermost."""
        table = context.accesses(ir)

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or len(stmt.ranges) < 2 or stmt.body:
                return (stmt,)
            reads = [a for a in table.all if a.stmt == stmt and not a.is_store and table.roles[a.buffer] != "const"]
            steps = [sum(abs(table.stride(a, r.var) or 0) for a in reads) for r in stmt.ranges]
            if any(table.stride(a, r.var) is None for a in reads for r in stmt.ranges):
                return (stmt,)
            order = sorted(range(len(steps)), key=lambda k: -steps[k])
            ranges = tuple(stmt.ranges[k] for k in order)
            if ranges == stmt.ranges or not context.may_apply(self, f"ranges of %{stmt.name} sorted", remark=False):
                return (stmt,)
            return (replace(stmt, ranges=ranges),)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def stride_order(self, table: Accesses, nest: list[For], machine: Machine) -> tuple[list[For], str]:
        """Return the loops ordered by stride, or for overlapping windows, and the reason."""
        order = order_by_stride(table, nest, int(machine.l1 * self.cache_fraction))
        window_order = order_for_windows(table, order, int(machine.l1 * self.cache_fraction))
        if window_order != order:
            return window_order, "overlapping windows stay in L1"
        return order, "by output stride"


def order_by_stride(table: Accesses, nest: list[For], cache_bytes: int) -> list[For]:
    """Order loops by the strides of the kernel's stores; unchanged if the stores disagree.

    Without a reduction the order of loads is a candidate too: the shorter innermost stride wins, so that few lines are
    in use at a time.  Orders that evict partially read cache lines come last.
    """
    stores = {_stride_order(table, a, nest) for a in table.all if a.is_store and table.roles[a.buffer] != "local"}
    if len(stores) != 1 or None in stores:
        return nest
    moves = not any(isinstance(s, Reduce) for s in tile.walk(nest[-1].body))
    loads = {_stride_order(table, a, nest) for a in table.all if moves and not a.is_store}
    orders = [o for o in (*stores, *(loads - stores)) if o is not None]

    def max_innermost_stride(order: tuple[int, ...]) -> int:
        return max(abs(table.stride(a, nest[order[-1]].range.var) or 0) for a in table.all)

    def wastes_lines(order: tuple[int, ...]) -> bool:
        ranges = [nest[k].range for k in order]
        return any(evicts_partial_lines(table, a, ranges, cache_bytes) for a in table.all if not a.is_store)

    return [nest[k] for k in min(orders, key=lambda o: (wastes_lines(o), max_innermost_stride(o), o not in stores, o))]


def evicts_partial_lines(table: Accesses, a: Access, order: list[Range], cache_bytes: int) -> bool:
    """Return True if `a` reads rows that share cache lines, and the lines are evicted before the next row is read.

    Rows of two lines or more do not count, because most of their lines are not shared.
    """
    along = next((k for k, r in enumerate(order) if table.stride(a, r.var) == 1), None)
    if along is None:
        return False
    row = extent_hint(order[along]) * table.types[a.buffer].dtype.bytes
    if row % CACHE_LINE_BYTES == 0 or row >= 2 * CACHE_LINE_BYTES:
        return False
    return prod(map(extent_hint, order[along + 1 :])) * CACHE_LINE_BYTES > cache_bytes


def order_for_windows(table: Accesses, order: list[For], cache_bytes: int) -> list[For]:
    """Move the innermost loop outside of loops with overlapping windows whose reuse distance exceeds the cache.

    With only a few lanes inside, all rows of a window fit.  Windows must not overlap along the innermost loop itself.
    """
    last = order[-1].range
    contiguous = (a for a in table.all if not a.is_store and table.stride(a, last.var) == 1)
    loads = [a for a in contiguous if not has_overlapping_reads(a, last)]
    for k, f in enumerate(order[:-1]):
        for a in (a for a in loads if has_overlapping_reads(a, f.range)):
            loops = (*(f.range for f in order[k + 1 :]), *tile.stmt_ranges(a.stmt))
            if footprint_bytes(table, [a], loops) > cache_bytes:
                return [*order[:k], order[-1], *order[k:-1]]
    return order


def has_overlapping_reads(a: Access, loop: Range) -> bool:
    """Return True if the next step of `loop` rereads some elements of a reduction."""
    ranges = tile.stmt_ranges(a.stmt)

    def step(d: Dim, v: str) -> int:
        return abs(coefficient(d, v) or 0)

    def window_extent(d: Dim) -> int:
        return max((step(d, r.var) * (extent_hint(r) - 1) for r in ranges), default=0)

    return bool(ranges) and any(0 < step(d, loop.var) <= window_extent(d) for d in a.index)


def _stride_order(table: Accesses, a: Access, nest: list[For]) -> tuple[int, ...] | None:
    """Return loop positions by decreasing stride of one access; None if a stride is 0 or unknown."""
    steps = [table.stride(a, f.range.var) for f in nest]
    return tuple(sorted(range(len(nest)), key=lambda k: -abs(steps[k] or 0))) if all(steps) else None
