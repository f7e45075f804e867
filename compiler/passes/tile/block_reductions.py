"""Block the reduction of long contractions, so that a block of each operand stays in cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.machine import Machine
from compiler.ir.scalar import Load, Ref, const
from compiler.ir.symbolic.index_expr import Dim, ceildiv, minimum, var
from compiler.ir.tile.contraction import is_contraction
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
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.passes.base import Context, TilePass, register

MIN_TILE_EXTENT = 16
"""Rows or columns that fill a tile of accumulators; chosen empirically."""


class StoredContraction(NamedTuple):
    """A contraction and the store of its result: the whole body of a loop nest."""

    reduction: Reduce
    store: Store

    @property
    def depth(self) -> Range:
        return self.reduction.ranges[0]


@register
@dataclass(frozen=True)
class BlockReductions(TilePass):
    """Block the reduction loop of a contraction whose operands are strided along it.

    parallel %i { parallel %j { %s = reduce add %r { x[%r, %i] * w[%r, %j] }  store %s, y } }
    ->  parallel %i.part { for %i.., %j { store 0, y }
          for %r.block { for %j { for %i.. { %s = reduce add %r.. { ... }  store y + %s, y } } } }

    With strided operands each step reads a few elements of another row, and every tile of accumulators touches more
    cache lines and pages than the caches and the TLB hold.  The rows of a block of `block_size` steps stay in cache (the
    depth loop of Goto and van de Geijn, 2008).  Applies to reductions of at least `min_depth` steps.  If one operand is
    contiguous along them, the other's row stride must be a multiple of `conflict_stride` bytes, which maps its rows to
    few cache sets.  If threads have too few outer iterations, rows or columns are split into parts of at least
    `min_part_length`.  Shorter chains of additions also round less.
    """

    name = "block-reductions"
    block_size: int = 256
    min_depth: int = 1024
    conflict_stride: int = 4096
    min_part_length: int = 128

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = perfect_nest(ir.body)
        match = self.match_contraction(nest)
        if match is None or not self.has_strided_operands(context.accesses(ir), nest, match):
            return ir
        context.applied(self, f"%{match.depth.var} in blocks of {self.block_size}")
        context.propose(self, None)
        body = self.blocked_nest(match, nest, context.machine, NameSupply(ir))
        return with_unique_names(ir.with_body(wrap_in_nest(nest[:-2], body)))

    def match_contraction(self, nest: list[For]) -> StoredContraction | None:
        """Match a contraction of `min_depth` steps or more that the two innermost loops compute and store."""
        if len(nest) < 2 or not all(f.parallel for f in nest):
            return None
        match nest[-1].body:
            case (Reduce(body=(), ranges=(depth,)) as sum_, Store() as store) if is_contraction(sum_):
                plain = store.value == Ref(sum_.value.dtype, sum_.name)
                return StoredContraction(sum_, store) if plain and dim_hint(depth.extent) >= self.min_depth else None
        return None

    def has_strided_operands(self, table: Accesses, nest: list[For], match: StoredContraction) -> bool:
        """Return True if one operand has the rows, one the columns, and their strides make blocking profitable."""
        rows, columns, depth = nest[-2].range.var, nest[-1].range.var, match.depth.var
        reads = [a for a in table.all if a.stmt is match.reduction]
        column_reads = [a for a in reads if table.depends_on(a, columns) and not table.depends_on(a, rows)]
        row_reads = [a for a in reads if table.depends_on(a, rows) and not table.depends_on(a, columns)]
        if (len(reads), len(column_reads), len(row_reads)) != (2, 1, 1):
            return False
        if any(has_fixed_layout(table, a) for a in reads):
            return False
        (w,), (x,) = column_reads, row_reads
        w_stride, x_stride = table.stride(w, depth), table.stride(x, depth)
        if not w_stride or not x_stride or table.stride(w, columns) != 1 or abs(w_stride) == 1:
            return False
        return abs(x_stride) > 1 or w_stride * table.types[w.buffer].dtype.bytes % self.conflict_stride == 0

    def blocked_nest(self, match: StoredContraction, nest: list[For], machine: Machine, fresh: NameSupply) -> Block:
        """Build loops that clear the result and add each block of the reduction, split into parts for idle threads."""
        rows, columns, depth = nest[-2].range, nest[-1].range, match.depth
        parts_needed = -(-machine.threads // iteration_count_hint(f.range for f in nest[:-2]))
        longest = max(rows, columns, key=extent_hint)
        split_loops = self.split_for_threads(longest, parts_needed, fresh(f"{longest.var}.part"))
        if split_loops is not None:
            outer, longest = split_loops
            rows, columns = (longest if r.var == longest.var else r for r in (rows, columns))
        total = match.reduction.value.dtype
        partial_sum = Load(total, match.store.buffer, match.store.index)
        accumulate = replace(match.store, value=partial_sum + match.store.value)

        def add_block(lo: Dim, hi: Dim) -> Block:
            reduction = replace(match.reduction, ranges=(depth.with_(lo=lo, hi=hi),))
            return wrap_in_nest([For(columns, ()), For(rows, ())], (reduction, accumulate))

        clear = wrap_in_nest([For(rows, ()), For(columns, ())], (replace(match.store, value=const(0, total)),))
        block_var, full_blocks = fresh(f"{depth.var}.block"), depth.extent // self.block_size
        start, end = depth.lo + var(block_var) * self.block_size, depth.lo + full_blocks * self.block_size
        body: Block = (*clear, For(Range(block_var, 0, full_blocks), add_block(start, start + self.block_size)))
        body = body if end == depth.hi else (*body, *add_block(end, depth.hi))
        return body if split_loops is None else (For(outer, body, parallel=True),)

    def split_for_threads(self, r: Range, threads: int, name: str) -> tuple[Range, Range] | None:
        """Split `r` into a loop over parts, up to two per thread, and a loop over a part; None for one part."""
        count = max(
            min(dim_hint(r.extent) // self.min_part_length, 2 * threads),
            min(dim_hint(r.extent) // MIN_TILE_EXTENT, threads),
        )
        if count < 2 or not isinstance(r.extent, int):
            return None
        size = -(-r.extent // count // MIN_TILE_EXTENT) * MIN_TILE_EXTENT
        outer = Range(name, 0, ceildiv(r.extent, size))
        start = r.lo + var(name) * size
        return outer, r.with_(lo=start, hi=minimum(start + size, r.hi, {name: (0, outer.hi - 1)}))


def has_fixed_layout(table: Accesses, a: Access) -> bool:
    """Return True if an operand is masked, or gets its layout from other passes (`pack`, local buffers)."""
    return table.roles[a.buffer] not in ("in", "inout") or a.is_masked
