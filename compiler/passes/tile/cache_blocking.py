"""Cache blocking: strips of rows, columns and reduced indices of a contraction that stay in a cache."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compiler.analysis.accesses import Access, Accesses
from compiler.analysis.operand_reuse import ContractionReuse, footprint_bytes, match_contraction_reuse
from compiler.cost.contraction import ContractionProblem, RegisterTile, best_tiles, resident_lines
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.result_stores import streams_results
from compiler.ir.scalar import Load, Ref, const
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.tile.contraction import adds_products
from compiler.ir.tile.kernel import (
    Block,
    For,
    Kernel,
    Range,
    Reduce,
    Store,
    dim_hint,
    extent_hint,
    iteration_count_hint,
)
from compiler.ir.tile.loop_nest import map_nests, perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, with_fresh_names, with_unique_names
from compiler.ir.types import DType
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.block_copies import BlockCopies
from compiler.transforms.interchange import interchange
from compiler.transforms.split import Strips, equal_strips, strip_mine, strip_mine_to_end


class BlockedContraction(NamedTuple):
    """A contraction and the store of its result, the whole body of a loop nest, and the operands to copy.

    `block` is the number of steps in a block of the reduction.
    """

    reduction: Reduce
    store: Store
    by_row: Load | None
    by_column: Load | None
    block: Dim

    @property
    def depth(self) -> Range:
        return self.reduction.ranges[0]

    @property
    def has_parallel_panels(self) -> bool:
        """Return True if panels of columns are independent: each has its own copy, and the whole sums of its results."""
        return self.block == self.depth.extent and self.by_row is None and self.by_column is not None


@register
@dataclass(frozen=True)
class CacheBlocking(TilePass):
    """Block the loops of a contraction, so that what is reread stays in a cache (Goto and van de Geijn, 2008).

    parallel %i { parallel %j { reduce %k { x[%i, %k] * w[%j, %k] } } }
    ->  parallel %i.block { parallel %j { parallel %i in 64*%i.block..64*%i.block + 64 { ... } } }

    Rows (M) that fit in `cache_fraction` of the L2 cache go inside the loops over the weights.  A panel of weights (N)
    then stays in L1 for all rows of a block, and the rows stay in L2 for all panels.  Batched contractions are blocked too.

    parallel %i { parallel %j { %s = reduce add %r { x[%r, %i] * w[%r, %j] }  store %s, y } }
    ->  parallel %i.part { for %i.., %j { store 0, y }
          for %r.block { local %a  copy of x[%r.., %i..]
            for %j.panel { local %b  copy of w[%r.., %j..]
              for %i.. { for %j.. { %s = reduce add %r.. { %a * %b }  store y + %s, y } } } } }

    The reduction (K) is blocked if the operands are strided along it, because each step then reads a few elements of
    another row, and every tile of accumulators touches more cache lines and pages than the caches and the TLB hold.
    A block of each strided operand is copied to dense rows: of at most `max_elements`, and of a panel of register tiles.
    Applies to reductions of at least `min_depth` steps, in blocks of `depth_block` (0: none).  If one operand is contiguous along
    them, the other's row stride must be a multiple of `conflict_stride` bytes, which maps its rows to few cache sets, or four
    tiles of rows must reread it and it must exceed the second-level cache.  Copies pay for shorter ones too, of operands that
    a static number of rows or columns reread: at least `min_conflict_reuse` if all steps share few sets, at least `min_reuse`
    if the operand takes more than a quarter of the second-level cache, or a half beside a constant, which `pack` lays out, or if a
    panel fits the first-level cache without the rest of the lines that its rows touch.  If
    threads have too few outer iterations, rows or columns are split into parts of at least `min_part_length`; panels that
    hold whole sums are parallel instead.  Shorter chains of additions also round less.
    """

    name = "cache-blocking"
    cache_fraction: float = from_machine("resident_rows")
    depth_block: int = from_machine("reduction_block")
    min_depth: int = from_machine("min_blocked_depth")
    conflict_stride: int = from_machine("way_bytes")
    min_part_length: int = from_machine("min_part_length")
    min_reuse: int = from_machine("min_dense_reuse")
    min_conflict_reuse: int = from_machine("min_operand_reuse")
    max_elements: int = from_machine("max_local_elements")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest, table = perfect_nest(ir.body), context.accesses(ir)
        match = self.match_contraction(table, nest, context.machine)
        if match is None or not context.may_apply(self, self.describe(match)):
            return map_nests(ir, lambda part: self.block_rows(part, context))
        context.propose(self, replace(self, depth_block=0))
        body = self.block_depth(match, nest, table, context.machine, NameSupply(ir))
        return with_unique_names(ir.with_body(wrap_in_nest(nest[:-2], body)))

    def describe(self, match: BlockedContraction) -> str:
        """Return the remark on a blocked contraction."""
        copies = " and ".join(f"%{e.buffer}" for e in (match.by_row, match.by_column) if e is not None)
        return f"%{match.depth.var} in blocks of {match.block}" + (copies and f", {copies} copied")

    # rows and columns

    def block_rows(self, ir: Kernel, context: Context) -> Block:
        """Block the rows of a kernel that is one nest."""
        nest, table = perfect_nest(ir.body), context.accesses(ir)
        if len(nest) < 2 or not all(f.parallel for f in nest):
            return ir.body
        reuse = match_contraction_reuse(table, nest, context.machine.lanes(32))
        if reuse is None or not reuse.has_reuse or streams_results(table, reuse, context.machine):
            return ir.body
        fractions = (self.cache_fraction * f for f in (0.25, 0.5, 1.5, 4.0))
        context.propose(self, None, *(replace(self, cache_fraction=f) for f in fractions))
        order, *remainder = self.cache_orders(table, reuse, context.machine.l2)
        if order == nest:
            return ir.body
        panels = ", ".join(dict.fromkeys(f"%{w.buffer}" for w in reuse.panels))
        names = ", ".join(f"%{f.range.var}" for f in order)
        if not context.may_apply(self, f"loops ordered {names}: {panels} is read once per cached row block"):
            return ir.body
        rest = (with_fresh_names(s, NameSupply(ir)) for o in remainder for s in interchange(o, nest[-1].body))
        return (*interchange(order, nest[-1].body), *rest)

    def cache_orders(self, table: Accesses, reuse: ContractionReuse, cache: int) -> list[list[For]]:
        """Return row blocks, panel loops, rows of a block as one order, and another for the rows that blocks leave over.

        Batch loops go outermost unless their panels fit the cache and their rows lie between each other.
        """
        columns = [f for f in reuse.panel_loops if f not in reuse.batch_loops]
        fits = reuse.panel_bytes <= cache * 2 // 3
        inner_batch_loops = reuse.batch_loops if fits and reuse.interleaves_batches else []
        row_bytes = int(cache * self.cache_fraction)
        row_bytes = min(row_bytes, cache * 7 // 8 - reuse.panel_bytes) if inner_batch_loops else row_bytes
        depth = [r for s in reuse.contractions for r in s.ranges]
        inner_ranges = (*depth, *(f.range for f in inner_batch_loops))
        orders = RowBlocking(table, reuse.rows, inner_ranges, row_bytes).split_rows(reuse.row_loops)
        return [
            [*(outer + reuse.batch_loops if inner_batch_loops else reuse.batch_loops + outer), *columns, *inner]
            for outer, inner in orders
        ]

    # the reduction

    def match_contraction(self, table: Accesses, nest: list[For], machine: Machine) -> BlockedContraction | None:
        """Match a contraction that the two innermost loops compute and store, and that profits from blocks or copies."""
        if len(nest) < 2 or not all(f.parallel for f in nest) or not self.depth_block:
            return None
        match nest[-1].body:
            case (Reduce(body=(), ranges=(depth,)) as sum_, Store() as store) if adds_products(sum_):
                reads = table.loads_of(sum_)
            case _:
                return None
        rows, columns = nest[-2].range, nest[-1].range
        by_column = [a for a in reads if table.depends_on(a, columns.var) and not table.depends_on(a, rows.var)]
        by_row = [a for a in reads if table.depends_on(a, rows.var) and not table.depends_on(a, columns.var)]
        if store.value != Ref(sum_.value.dtype, sum_.name) or (len(reads), len(by_column), len(by_row)) != (2, 1, 1):
            return None
        if any(a.is_masked or a.buffer == store.buffer for a in reads):
            return None
        (w,), (x,) = by_column, by_row
        w_stride, x_stride = (abs(table.stride(a, depth.var) or 0) for a in (w, x))
        if not x_stride or w_stride < 2 or table.stride(w, columns.var) != 1:
            return None
        w_bytes, x_bytes = (table.types[a.buffer].dtype.bytes for a in (w, x))
        w_stride, x_stride = (0 if is_packed(table, a) else s for a, s in ((w, w_stride), (x, x_stride)))
        shares_sets = w_stride > 0 and w_stride * w_bytes % self.conflict_stride == 0
        steps, length = dim_hint(self.block_length(depth)), extent_hint(depth)

        def is_reread() -> bool:
            """Return True if four tiles of rows or more read `w`, which the second-level cache does not hold."""
            tile, _ = self.register_tile(rows, columns, steps, sum_.value.dtype, machine)
            return length * w_stride * w_bytes > machine.l2 and extent_hint(rows) >= 4 * tile.rows

        def outgrows_l1() -> bool:
            """Return True if the first-level cache holds a panel of `w` as a copy, but not the lines that its rows touch."""
            tile, lanes = self.register_tile(rows, columns, steps, sum_.value.dtype, machine)
            row_bytes = tile.registers * lanes * w_bytes
            lines = -(-row_bytes // CACHE_LINE_BYTES) + bool(w_stride * w_bytes % CACHE_LINE_BYTES)
            return length * row_bytes <= machine.l1 < length * lines * CACHE_LINE_BYTES

        is_blocked = length >= self.min_depth and (x_stride > 1 or shares_sets or is_reread())
        is_static = isinstance(rows.extent, int) and isinstance(columns.extent, int)
        near_bytes = machine.l2 // (4 if w_stride and x_stride else 2)

        def is_copied(stride: int, element_bytes: int, own: Range, other: Range) -> bool:
            """Return True if an operand with the rows or columns `own` is copied in blocks for all `other` ones."""
            if stride < 2 or not is_static:
                return False
            if steps > resident_lines(stride * element_bytes, machine):
                return extent_hint(other) >= self.min_conflict_reuse
            is_far = length * extent_hint(own) * element_bytes > near_bytes
            pays = is_blocked or is_far or (own is columns and outgrows_l1())
            return pays and extent_hint(other) >= self.min_reuse

        copied = {
            w.buffer: is_copied(w_stride, w_bytes, columns, rows),
            x.buffer: is_copied(x_stride, x_bytes, rows, columns),
        }
        if not is_blocked and not any(copied.values()):
            return None
        loads = {e.buffer: e for e in sum_.value.loads if copied[e.buffer]}
        block = self.block_length(depth) if is_blocked or copied[x.buffer] else depth.extent
        return BlockedContraction(sum_, store, loads.get(x.buffer), loads.get(w.buffer), block)

    def block_length(self, depth: Range) -> Dim:
        """Return the steps of a block of the reduction, of which a static one has equal ones."""
        if not isinstance(depth.extent, int):
            return self.depth_block
        return equal_strips(depth.extent, self.depth_block)

    def register_tile(
        self, rows: Range, columns: Range, steps: int, dtype: DType, machine: Machine
    ) -> tuple[RegisterTile, int]:
        """Return the register tile of a contraction with so many steps in a block, and the lanes of its registers."""
        lanes = machine.lanes(8 * dtype.bytes)
        problem = ContractionProblem(extent_hint(columns), lanes, steps, 1)
        return best_tiles(extent_hint(rows), [problem], machine)[0], lanes

    def block_depth(
        self, match: BlockedContraction, nest: list[For], table: Accesses, machine: Machine, fresh: NameSupply
    ) -> Block:
        """Build loops that clear the result and add each block of the reduction, split into parts for idle threads."""
        rows, columns, depth = nest[-2].range, nest[-1].range, match.depth
        parts_needed = -(-machine.threads // iteration_count_hint(f.range for f in nest[:-2]))
        longest = max(rows, columns, key=extent_hint)
        parts = None
        if not match.has_parallel_panels:
            parts = self.split_for_threads(longest, parts_needed, machine.min_tile_extent, fresh(f"{longest.var}.part"))
        bounds = dict(table.loop_bounds)
        if parts is not None:
            rows, columns = (parts.inner if r is longest else r for r in (rows, columns))
            bounds[parts.outer.var] = (0, extent_hint(parts.outer) - 1)
        tile, lanes = self.register_tile(rows, columns, dim_hint(match.block), match.reduction.value.dtype, machine)
        operands = (match.by_row, match.by_column)
        copies = BlockCopies(
            *operands, tile.registers * lanes, match.has_parallel_panels, self.max_elements, bounds, fresh
        )
        if match.block == depth.extent:
            body = copies.nest(rows, columns, depth, (match.reduction, match.store))
        else:
            body = self.sum_of_blocks(match, rows, columns, copies)
        return body if parts is None else (For(parts.outer, body, parallel=True),)

    def sum_of_blocks(self, match: BlockedContraction, rows: Range, columns: Range, copies: BlockCopies) -> Block:
        """Build loops that clear the result and add each block of the reduction."""
        total, depth = match.reduction.value.dtype, match.depth
        partial_sum = Load(total, match.store.buffer, match.store.index)
        accumulate = replace(match.store, value=partial_sum + match.store.value)

        def add_block(r: Range) -> Block:
            return copies.nest(rows, columns, r, (replace(match.reduction, ranges=(r,)), accumulate))

        clear = wrap_in_nest([rows, columns], (replace(match.store, value=const(0, total)),))
        blocks = strip_mine(depth, dim_hint(match.block), copies.fresh(f"{depth.var}.block"))
        rest = () if blocks.remainder is None else add_block(blocks.remainder)
        return (*clear, For(blocks.outer, add_block(blocks.inner)), *rest)

    def split_for_threads(self, r: Range, threads: int, unit: int, name: str) -> Strips | None:
        """Split `r` into a loop over parts, up to two per thread, and over a part, a multiple of `unit`; None for one part."""
        count = max(
            min(dim_hint(r.extent) // self.min_part_length, 2 * threads),
            min(dim_hint(r.extent) // unit, threads),
        )
        if count < 2 or not isinstance(r.extent, int):
            return None
        return strip_mine_to_end(r, -(-r.extent // count // unit) * unit, name)


@dataclass(frozen=True)
class RowBlocking:
    """Blocking of the row loops of a contraction, so that its row `operands` fit in `cache_bytes`."""

    table: Accesses
    operands: Sequence[Access]
    reduction_ranges: Sequence[Range]
    cache_bytes: int

    def split_rows(self, rows: list[For]) -> list[tuple[list[For], list[For]]]:
        """Split the row loops into those outside the loops over panels, and those inside, whose footprint fits the cache.

        Returns one pair (outside, inside).  If rows remain after the last whole block, a second pair has their loops.
        """
        outer, inner = list(rows), list[For]()
        while outer and self.footprint([outer[-1], *inner]) <= self.cache_bytes:
            inner.insert(0, outer.pop())
        if not outer:
            return [(outer, inner)]
        last = outer.pop()
        size = self.block_size(last, inner)
        if not size:
            return [([*outer, last], inner) if inner else ([], [*outer, last])]
        blocks = strip_mine(last.range, size, f"{last.range.var}.block")
        orders = [([*outer, replace(last, range=blocks.outer)], [replace(last, range=blocks.inner), *inner])]
        if blocks.remainder is not None:
            orders.append((outer, [replace(last, range=blocks.remainder), *inner]))
        return orders

    def block_size(self, last: For, inner: list[For]) -> int:
        """Return the rows of a block, 0 for no blocking: the most that fit and, if static, divide the extent.

        Rows without inner loops come in multiples of 8; if no such block divides them, blocks are balanced instead.
        """
        extent = extent_hint(last.range)
        blocks = range(2, extent) if inner else range(16, extent, 8)
        count = bisect_right(
            blocks,
            self.cache_bytes,
            key=lambda n: self.footprint([replace(last, range=last.range.with_(lo=0, hi=n)), *inner]),
        )
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
        return footprint_bytes(self.table, self.operands, (*(f.range for f in loops), *self.reduction_ranges))


def is_packed(table: Accesses, a: Access) -> bool:
    """Return True if other passes choose the layout of an operand: constants (`pack`) and local buffers."""
    return table.roles[a.buffer] not in ("in", "inout")
