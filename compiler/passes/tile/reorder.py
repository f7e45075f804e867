"""Loop interchange by memory strides, and cache blocking of the loops around a contraction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim, interval, simplify, size_hint, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, dim_hint, extent_hint
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, with_fresh_names
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Reorder(TilePass):
    """Reorder parallel loops for locality, and block the rows of contractions.

    parallel i { parallel j { reduce k x[i, k] * w[j, k] } }
    ->  parallel i.block { parallel j { parallel i in 64*i.block..64*i.block + 64 { ... } } }

    Rows that fit in `cache_fraction` of the L2 cache go inside the loops over the weights.  A panel of weights then stays
    in L1 for all rows of a block, and the rows stay in L2 for all panels (Goto and van de Geijn, 2008).  Batched
    contractions are blocked too.  Without reuse, loops are ordered by the strides of stores, or of loads if that has
    shorter innermost strides; ranges of a reduction by the strides of its loads.  Channels go outside of overlapping
    windows whose shared rows would leave the L1 cache.  Reductions are reassociated.
    """

    name = "reorder"
    cache_fraction: float = 0.5

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = self.sort_reductions(context.accesses(ir))
        if len(ir.body) > 1 and all(isinstance(s, For) and s.parallel for s in ir.body):
            return ir.with_body(
                tuple(s for part in ir.body for s in self.reorder_nest(ir.with_body((part,)), context).body)
            )
        return self.reorder_nest(ir, context)

    def reorder_nest(self, ir: Kernel, context: Context) -> Kernel:
        """Reorder the loops of the kernel's nest."""
        nest = perfect_nest(ir.body)
        if len(nest) < 2 or not all(f.parallel for f in nest):
            return ir
        order, why = self.loop_order(context.accesses(ir), nest, context)
        if order == nest:
            return ir
        context.applied(self, f"loops ordered {', '.join('%' + f.range.var for f in order)}: {why}")
        return ir.with_body((*wrap_in_nest(order, nest[-1].body), *remainder_nest(ir, nest, order)))

    def loop_order(self, table: Accesses, nest: list[For], context: Context) -> tuple[list[For], str]:
        """Return the new order of the loops of a nest, and the reason for it."""
        inside, machine = nest[-1].body, context.machine
        contractions = [s for s in inside if is_contraction(s)]
        if not contractions:
            deeper = any(is_contraction(s) for s in tile.walk(inside))
            return (nest, "") if deeper else self.stride_order(table, nest, machine)
        weights = [w for s in contractions if (w := self.panel_operand(table, s, nest[-1].range.var)) is not None]
        if len(weights) < len(contractions):
            return nest, ""
        reads = [a for a in table.all if any(a.stmt is s for s in contractions) and not a.is_store]
        row_operands = [a for a in reads if not any(a is w for w in weights)]
        weight_loops = [f for f in nest if any(table.depends_on(w, f.range.var) for w in weights)]
        if all(table.depends_on(a, f.range.var) for a in row_operands for f in weight_loops):
            return self.stride_order(table, nest, machine)
        context.propose(
            self, None, *(replace(self, cache_fraction=self.cache_fraction * f) for f in (0.25, 0.5, 1.5, 4.0))
        )
        read = ", ".join(dict.fromkeys(f"%{w.buffer}" for w in weights))
        why = f"{read} is read once per cached row block"
        return self.cache_order(table, nest, contractions, weights, row_operands, machine.l2), why

    def stride_order(self, table: Accesses, nest: list[For], machine: Machine) -> tuple[list[For], str]:
        """Return the loops ordered by stride, or for overlapping windows, and the reason."""
        order = order_by_stride(table, nest, int(machine.l1 * self.cache_fraction))
        window_order = order_for_windows(table, order, int(machine.l1 * self.cache_fraction))
        if window_order != order:
            return window_order, "overlapping windows stay in L1"
        return order, "by output stride"

    def cache_order(
        self,
        table: Accesses,
        nest: list[For],
        contractions: list[Reduce],
        weights: list[Access],
        row_operands: list[Access],
        cache: int,
    ) -> list[For]:
        """Return row blocks, weight loops, rows of a block; batch loops outermost unless their weights fit the cache."""
        weight_loops = [f for f in nest if any(table.depends_on(w, f.range.var) for w in weights)]
        batch_loops = [f for f in weight_loops if all(table.depends_on(a, f.range.var) for a in row_operands)]
        columns, rows = [f for f in weight_loops if f not in batch_loops], [f for f in nest if f not in weight_loops]
        size = sum({w.buffer: buffer_bytes(table, w) for w in weights}.values())
        inner_batch_loops = batch_loops if size <= cache * 2 // 3 else []
        row_bytes = int(cache * self.cache_fraction)
        row_bytes = min(row_bytes, cache * 7 // 8 - size) if inner_batch_loops else row_bytes
        depth = [r for s in contractions for r in s.ranges]
        inner_ranges = (*depth, *(f.range for f in inner_batch_loops))
        outer, inner = RowBlocking(table, row_operands, inner_ranges, row_bytes).split_rows(rows)
        blocks = [*outer, *batch_loops] if inner_batch_loops else [*batch_loops, *outer]
        return [*blocks, *columns, *inner]

    def sort_reductions(self, table: Accesses) -> Kernel:
        """Order the ranges of each reduction by the strides of its loads, largest outermost."""

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, Reduce) or len(stmt.ranges) < 2 or stmt.body:
                return (stmt,)
            reads = [a for a in table.all if a.stmt == stmt and not a.is_store and table.roles[a.buffer] != "const"]
            steps = [sum(abs(table.stride(a, r.var) or 0) for a in reads) for r in stmt.ranges]
            if any(table.stride(a, r.var) is None for a in reads for r in stmt.ranges):
                return (stmt,)
            order = sorted(range(len(steps)), key=lambda k: -steps[k])
            return (replace(stmt, ranges=tuple(stmt.ranges[k] for k in order)),)

        return table.kernel.with_body(tile.expand_stmts(table.kernel.body, rule))

    @staticmethod
    def panel_operand(table: Accesses, s: Reduce, last: str) -> Access | None:
        """Return the operand whose panels stay in L1: a constant, else one that depends on loop `last`, or None."""
        reads = [a for a in table.all if not a.is_store and a.stmt is s]
        constant = next((a for a in reads if table.roles[a.buffer] == "const"), None)
        return constant or next((a for a in reads if table.depends_on(a, last)), None)


@dataclass(frozen=True)
class RowBlocking:
    """Blocking of the row loops of a contraction, so that its row `operands` fit in `cache_bytes`."""

    table: Accesses
    operands: Sequence[Access]
    reduction_ranges: Sequence[Range]
    cache_bytes: int

    def split_rows(self, rows: list[For]) -> tuple[list[For], list[For]]:
        """Split rows into loops outside of those over the weights, and loops inside whose footprint fits the cache."""
        outer, inner = list(rows), list[For]()
        while outer and self.footprint([outer[-1], *inner]) <= self.cache_bytes:
            inner.insert(0, outer.pop())
        if not outer:
            return outer, inner
        last = outer.pop()
        size = self.block_size(last, inner)
        if not size:
            return ([*outer, last], inner) if inner else ([], [*outer, last])
        block = Range(f"{last.range.var}.block", 0, last.range.extent // size)
        start = var(block.var) * size
        return [*outer, replace(last, range=block)], [with_bounds(last, start, start + size), *inner]

    def block_size(self, last: For, inner: list[For]) -> int:
        """Return the rows of a block, 0 for no blocking: the most that fit and, if static, divide the extent.

        Rows without inner loops come in multiples of 8; if no such block divides them, blocks are balanced instead.
        """
        extent = extent_hint(last.range)
        blocks = range(2, extent) if inner else range(16, extent, 8)
        count = bisect_right(blocks, self.cache_bytes, key=lambda n: self.footprint([with_bounds(last, 0, n), *inner]))
        most = blocks[count - 1] if count else 0
        if inner and not isinstance(last.range.extent, int):
            return most
        if even := [n for n in blocks[:count] if extent % n == 0]:
            return even[-1]
        return 0 if inner else self.even_block_size(extent, most)

    @staticmethod
    def even_block_size(extent: int, fitting: int) -> int:
        """Return the size, a multiple of 16, of as few balanced blocks as fit; 0 if 16 rows do not fit."""
        if not fitting // 16:
            return 0
        number = -(-extent // (fitting // 16 * 16))
        return -(-extent // number // 16) * 16

    def footprint(self, loops: list[For]) -> int:
        """Return the bytes of the operands that these loops and the reduction touch."""
        ranges = {r.var: extent_hint(r) for r in (*(f.range for f in loops), *self.reduction_ranges)}
        touched: dict[str, int] = {}
        for a in self.operands:
            type_ = self.table.types[a.buffer]
            extents = (
                touched_extent(size_hint(d), dim_hint(n), ranges) for d, n in zip(a.index, type_.shape, strict=True)
            )
            touched[a.buffer] = max(touched.get(a.buffer, 0), prod(extents) * type_.dtype.bytes)
        return sum(touched.values())


def touched_extent(d: Dim, size: int, ranges: dict[str, int]) -> int:
    """Return how many of `size` indices `d` takes at most while each variable runs from 0 to its extent in `ranges`."""
    bounds = {v: (0, ranges.get(v, 1) - 1) for v in variables(d)}
    bounds_of_index = interval(simplify(d, bounds), bounds)
    return size if bounds_of_index is None else min(size, bounds_of_index[1] - bounds_of_index[0] + 1)


def remainder_nest(ir: Kernel, nest: list[For], order: list[For]) -> Block:
    """Return the loops over the rows that blocks leave over, or () if the block size divides them."""
    lengths = {f.range.var: f.range.hi for f in nest}
    block = next((f for f in order if f.range.var not in lengths), None)
    if block is None:
        return ()
    row = next(f for f in order if block.range.var in variables(f.range.lo))
    hi, size = lengths[row.range.var], row.range.extent
    if hi % size == 0:
        return ()
    loops = [f if f is not row else with_bounds(row, hi // size * size, hi) for f in order if f is not block]
    return tuple(with_fresh_names(s, NameSupply(ir)) for s in wrap_in_nest(loops, nest[-1].body))


def with_bounds(loop: For, lo: Dim, hi: Dim) -> For:
    """Return the same loop over lo..hi-1."""
    return replace(loop, range=loop.range.with_(lo=lo, hi=hi))


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
            blocking = RowBlocking(table, [a], tile.stmt_ranges(a.stmt), cache_bytes)
            if blocking.footprint(order[k + 1 :]) > cache_bytes:
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
