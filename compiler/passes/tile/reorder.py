"""Order the loops of a kernel as memory lies, and those around a contraction so that its larger operand is streamed once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import Access, Accesses, buffer_bytes, is_contraction, perfect_nest, wrap_in_nest
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim, interval, simplify, size_hint, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, dim_hint, extent_hint
from compiler.ir.tile.substitution import NameSupply, with_fresh_names
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Reorder(TilePass):
    """parallel i { parallel j { reduce k x[i, k] * w[j, k] } }
    ->  parallel i.block { parallel j { parallel i in 64*i.block..64*i.block + 64 { ... } } }

    As many rows as fit in a `share` of the second-level cache go inside the loops over the weights, so that a panel of weights stays in
    the first level while these rows pass by, and the rows stay in the second while the panels do (Goto and van de Geijn,
    2008); a stack of small products is walked block by block too.  Where nothing is read again, loops follow the strides of what is
    stored, or of what is read where that keeps both nearer, and the ranges of a reduction those of what it reads.  Channels go
    outside windows whose shared rows would leave the first-level cache.  The outer loops are independent of each other; a
    reduction adds in another order.
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
        """The kernel with the loops of its nest in order."""
        nest = perfect_nest(ir.body)
        if len(nest) < 2 or not all(f.parallel for f in nest):
            return ir
        order, why = self.loop_order(context.accesses(ir), nest, context)
        if order == nest:
            return ir
        context.applied(self, f"loops ordered {', '.join('%' + f.range.var for f in order)}: {why}")
        return ir.with_body((*wrap_in_nest(order, nest[-1].body), *remainder_nest(ir, nest, order)))

    def loop_order(self, table: Accesses, nest: list[For], context: Context) -> tuple[list[For], str]:
        """In what order the loops of a nest should be, and why."""
        inside, machine = nest[-1].body, context.machine or Machine()
        contractions = [s for s in inside if isinstance(s, Reduce) and is_contraction(s)]
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
        why = f"{read} is read once for every block of rows that stays in cache"
        return self.cache_order(table, nest, contractions, weights, row_operands, machine.l2), why

    def stride_order(self, table: Accesses, nest: list[For], machine: Machine) -> tuple[list[For], str]:
        """Loops by their strides, but for windows whose shared rows would not stay in the first-level cache; and why."""
        order = order_by_stride(table, nest, int(machine.l1 * self.cache_fraction))
        window_order = order_for_windows(table, order, int(machine.l1 * self.cache_fraction))
        if window_order != order:
            return window_order, "the rows that windows share stay in the first-level cache"
        return order, "as their results lie in memory"

    def cache_order(
        self,
        table: Accesses,
        nest: list[For],
        contractions: list[Reduce],
        weights: list[Access],
        row_operands: list[Access],
        cache: int,
    ) -> list[For]:
        """Blocks of rows outside, then the loops over the weights, then the rows of a block; a stack's loops by what fits."""
        weight_loops = [f for f in nest if any(table.depends_on(w, f.range.var) for w in weights)]
        batch_loops = [f for f in weight_loops if all(table.depends_on(a, f.range.var) for a in row_operands)]
        columns, rows = [f for f in weight_loops if f not in batch_loops], [f for f in nest if f not in weight_loops]
        size = sum({w.buffer: buffer_bytes(table, w) for w in weights}.values())
        inner_batch_loops = batch_loops if size <= cache * 2 // 3 else []
        row_bytes = int(cache * self.cache_fraction)
        row_bytes = min(row_bytes, cache * 7 // 8 - size) if inner_batch_loops else row_bytes
        depth = [r for s in contractions for r in s.ranges]
        outer, inner = RowBlocking(
            table, row_operands, (*depth, *(f.range for f in inner_batch_loops)), row_bytes
        ).split_rows(rows)
        return (
            [*outer, *batch_loops, *columns, *inner] if inner_batch_loops else [*batch_loops, *outer, *columns, *inner]
        )

    def sort_reductions(self, table: Accesses) -> Kernel:
        """Ranges of each reduction by the strides of what it reads, the longest outside."""

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
        """The operand whose panels are to stay near: a constant, else what the innermost loop moves along."""
        reads = [a for a in table.all if not a.is_store and a.stmt is s]
        constant = next((a for a in reads if table.roles[a.buffer] == "const"), None)
        return constant or next((a for a in reads if table.depends_on(a, last)), None)


@dataclass(frozen=True)
class RowBlocking:
    """The loops over which `moving` operands of a contraction change and its weights do not."""

    table: Accesses
    operands: Sequence[Access]
    reduction_ranges: Sequence[Range]
    cache_bytes: int

    def split_rows(self, rows: list[For]) -> tuple[list[For], list[For]]:
        """Loops around those over the weights, and loops inside whose rows together fit in the cache."""
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
        """How many rows of a loop are a block, 0 for none: as many as fit, and of those that are known a divisor.  Rows without loops
        inside come in whole tiles; where no block divides them, they are parted evenly, and what is left over is walked behind.
        """
        extent, is_open = extent_hint(last.range), not isinstance(last.range.extent, int)
        blocks = range(2, extent) if inner else range(16, extent, 8)
        count = bisect_right(blocks, self.cache_bytes, key=lambda n: self.footprint([with_bounds(last, 0, n), *inner]))
        most = blocks[count - 1] if count else 0
        if inner and is_open:
            return most
        if even := [n for n in blocks[:count] if extent % n == 0]:
            return even[-1]
        return 0 if inner else self.even_block_size(extent, most)

    @staticmethod
    def even_block_size(extent: int, fitting: int) -> int:
        """About as many blocks of equal size as are needed, in whole tiles; 0 where not even the smallest fits."""
        if not fitting // 16:
            return 0
        number = -(-extent // (fitting // 16 * 16))
        return -(-extent // number // 16) * 16

    def footprint(self, loops: list[For]) -> int:
        """What the moving operands touch while these loops and the reduction run."""
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
    """How many of `size` indices `d` passes at most while variables take all values in `ranges`."""
    bounds = {v: (0, ranges.get(v, 1) - 1) for v in variables(d)}
    bounds_of_index = interval(simplify(d, bounds), bounds)
    return size if bounds_of_index is None else min(size, bounds_of_index[1] - bounds_of_index[0] + 1)


def remainder_nest(ir: Kernel, nest: list[For], order: list[For]) -> Block:
    """Where blocks may leave rows of a loop of open length over: the same loops over these rows."""
    lengths = {f.range.var: f.range.hi for f in nest}
    block = next((f for f in order if f.range.var not in lengths), None)
    if block is None:
        return ()
    row = next(f for f in order if block.range.var in variables(f.range.lo))
    hi, size = lengths[row.range.var], row.range.extent
    if hi % size == 0:
        return ()
    rest = [f if f is not row else with_bounds(row, hi // size * size, hi) for f in order if f is not block]
    return tuple(with_fresh_names(s, NameSupply(ir)) for s in wrap_in_nest(rest, nest[-1].body))


def with_bounds(loop: For, lo: Dim, hi: Dim) -> For:
    """The same loop over lo..hi-1."""
    return replace(loop, range=loop.range.with_(lo=lo, hi=hi))


def order_by_stride(table: Accesses, nest: list[For], cache_bytes: int) -> list[For]:
    """Loops in the order of their strides in what the kernel stores; as they are where that is not one plain order.

    Where all it does is to move what it reads in another order, the one whose innermost loop makes the shorter strides in
    both: few lines then grow side by side.  But not if lines of short rows that end inside them would leave `cache` half read.
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
        return any(
            evicts_partial_lines(table, a, [nest[k].range for k in order], cache_bytes)
            for a in table.all
            if not a.is_store
        )

    return [nest[k] for k in min(orders, key=lambda o: (wastes_lines(o), max_innermost_stride(o), o not in stores, o))]


def evicts_partial_lines(table: Accesses, a: Access, order: list[Range], cache_bytes: int) -> bool:
    """Whether short rows that `a` reads end inside a line, and more lines than fit in `cache` are read before the next row is.

    Of rows of two lines and more, most lines are not shared.
    """
    along = next((k for k, r in enumerate(order) if table.stride(a, r.var) == 1), None)
    if along is None:
        return False
    row = extent_hint(order[along]) * table.types[a.buffer].dtype.bytes
    if row % CACHE_LINE_BYTES == 0 or row >= 2 * CACHE_LINE_BYTES:
        return False
    return prod(map(extent_hint, order[along + 1 :])) * CACHE_LINE_BYTES > cache_bytes


def order_for_windows(table: Accesses, order: list[For], cache_bytes: int) -> list[For]:
    """`order` with its innermost loop outside those whose windows overlap, where more than fits in `cache` is read between two
    steps that share some of it: of a few lanes, all rows of a window do.  No windows overlap along the innermost loop itself.
    """
    last = order[-1].range
    loads = [
        a for a in table.all if not a.is_store and table.stride(a, last.var) == 1 and not has_overlapping_reads(a, last)
    ]
    for k, f in enumerate(order[:-1]):
        for a in loads:
            if (
                has_overlapping_reads(a, f.range)
                and RowBlocking(table, [a], tile.stmt_ranges(a.stmt), cache_bytes).footprint(order[k + 1 :])
                > cache_bytes
            ):
                return [*order[:k], order[-1], *order[k:-1]]
    return order


def has_overlapping_reads(a: Access, loop: Range) -> bool:
    """Whether a reduction reads some elements again in the next step of `loop`."""
    ranges = tile.stmt_ranges(a.stmt)

    def step(d: Dim, v: str) -> int:
        return abs(coefficient(d, v) or 0)

    def window_extent(d: Dim) -> int:
        return max((step(d, r.var) * (extent_hint(r) - 1) for r in ranges), default=0)

    return bool(ranges) and any(0 < step(d, loop.var) <= window_extent(d) for d in a.index)


def _stride_order(table: Accesses, a: Access, nest: list[For]) -> tuple[int, ...] | None:
    """The loops by the strides of one access, the longest first; None where it does not follow them all."""
    steps = [table.stride(a, f.range.var) for f in nest]
    return tuple(sorted(range(len(nest)), key=lambda k: -abs(steps[k] or 0))) if all(steps) else None
