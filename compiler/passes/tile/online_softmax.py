"""Take long rows in parts: attention without a matrix of scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.accesses import perfect_nest, wrap_in_nest
from compiler.analysis.softmax_match import SoftmaxRow, guarded_max, last_unmasked_index, match_softmax_row
from compiler.ir import scalar
from compiler.ir.graph.structure import lowest
from compiler.ir.scalar import Expr, Load, Ref, const
from compiler.ir.symbolic.index_expr import (
    Bounds,
    Dim,
    ceildiv,
    floordiv,
    interval,
    minimum,
    substitute,
    var,
    variables,
)
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, dim_hint
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.ir.types import TensorType
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class OnlineSoftmax(TilePass):
    """for %i { local %s  %m = reduce max %r { ... }  %t = reduce add %r { exp(%s[%r] - %m) }  for %j { reduce add %r { ... } } }
    ->  for %i.block { local %top  local %sum  local %acc  for %part { for %i in %i.block { ... } }  for %i in %i.block { ... } }

    A part of the row is computed for a block of rows while what they all read is near; each row holds the maximum and the sums so far,
    and rescales them where the maximum grows.  No row is ever stored whole.  See compiler.passes.rescale, and Dao et al.,
    "FlashAttention", 2022.  Pays for rows of more than `longest` elements, and for shorter ones of which each sees only the
    places up to its own: parts that no row of a block sees are left out, whatever they hold, and `causal` places and rows
    go together.  Rows of open length are long if they may be: of a short one there is a part alone.
    """

    name = "online-softmax"
    max_untiled_length: int = 640
    column_block: int = 256
    row_block: int = 512
    causal_block: int = 64

    def run(self, ir: Kernel, context: Context) -> Kernel:
        row = self.match_row(ir)
        if row is None:
            return ir
        nest, causal_limit = perfect_nest(ir.body), last_unmasked_index(row.max_reduction)
        column_block, row_block = (
            (self.column_block, self.row_block) if causal_limit is None else (self.causal_block, self.causal_block)
        )
        body = wrap_in_nest(
            nest[:-1],
            OnlineSoftmaxBuilder(row, nest[-1], causal_limit, NameSupply(ir), column_block).row_block_loop(row_block),
        )
        seen = "" if causal_limit is None else f", those behind {causal_limit} left out"
        context.applied(
            self, f"rows of {row.extent} in parts of {column_block}{seen}; sums rescaled as the maximum grows"
        )
        return with_unique_names(ir.with_body(body))

    def match_row(self, ir: Kernel) -> SoftmaxRow | None:
        """The long row that the innermost of the kernel's parallel loops computes, if it can be taken in parts."""
        nest = perfect_nest(ir.body)
        if not nest or not all(f.parallel for f in nest) or nest[-1].range.lo != 0:
            return None
        row = match_softmax_row(nest[-1].body)
        length = None if row is None else interval(row.extent, {})
        if row is None or variables(nest[-1].range.hi) or length is None or length[0] < 1:
            return None
        long = length[1] > self.max_untiled_length or (
            length[1] >= 2 * self.causal_block and last_unmasked_index(row.max_reduction) is not None
        )
        return row if long else None


class OnlineSoftmaxBuilder:
    """The statements of a row, spread over parts of it."""

    def __init__(
        self, match: SoftmaxRow, loop: For, causal_limit: Dim | None, fresh: NameSupply, column_block: int
    ) -> None:
        self.row, self.loop, self.causal_limit, self.column_block = match, loop, causal_limit, column_block
        self.dtype = match.max_reduction.value.dtype
        self.max_buffer = fresh("top")
        self.sum_buffers = [fresh(f"{s.name}.sum") for s in match.reductions]
        self.accumulators = [fresh(f"{p.reduction.name}.sum") for p in match.weighted_sums]
        self.row_block_var, self.column_block_var = (
            fresh(f"{loop.range.var}.block"),
            fresh(f"{match.max_reduction.ranges[0].var}.part"),
        )
        self.names = {n: fresh(n) for n in ("old", "new", "shift", "weight", "clear")}

    def row_block_loop(self, max_rows: int) -> Block:
        """Blocks of at most `most` rows, equal but for the last one."""
        count = self.loop.range.hi
        size = self.row_block_size(count, max_rows)
        blocks = ceildiv(count, size)
        start = var(self.row_block_var) * size if blocks != 1 else 0
        body = self.row_block_body(start, size, {self.row_block_var: (0, blocks - 1)})
        return (For(Range(self.row_block_var, 0, blocks), body, parallel=True),) if blocks != 1 else body

    def row_block_size(self, count: Dim, max_rows: int) -> int:
        """How many of `count` rows are taken together."""
        rows = dim_hint(count)
        blocks = -(-rows // max_rows)
        if blocks == 1 or self.causal_limit is not None:
            return min(max_rows, count) if isinstance(count, int) else max_rows
        return rows // blocks if rows % blocks == 0 else -(-rows // blocks // 8) * 8

    def row_block_body(self, start: Dim, size: int, bounds: Bounds) -> Block:
        """At most `size` rows from `start` on: what they hold, cleared, carried through the parts, and made their results."""
        count = minimum(size, self.loop.range.hi - start, bounds)
        self.row_index = var(self.loop.range.var) - start
        self.row_range = replace(self.loop.range, lo=start, hi=start + count)
        whole, last = self.row.extent // self.column_block, start + count - 1
        rest = self.row.extent - whole * self.column_block
        column_loops = [self.column_block_loop(0, self.visible_blocks(last, whole, bounds), self.column_block)]
        end = self.visible_blocks(last, ceildiv(self.row.extent, self.column_block), bounds)
        beyond = interval(end - whole, bounds)
        if rest != 0 and (beyond is None or beyond[1] > 0):
            column_loops.append(self.column_block_loop(whole, end, rest))
        return (*self.state_buffers(size), *self.initialize_state(count), *column_loops, self.finalize())

    def column_block_loop(self, first: Dim, end: Dim, extent: Dim) -> For:
        """The parts `first`..`end`-1, each of `extent` places; the one behind the whole parts is there or not."""
        return For(
            Range(self.column_block_var, first, end),
            (self.update_state(var(self.column_block_var) * self.column_block, extent),),
        )

    def visible_blocks(self, last_row: Dim, blocks: Dim, bounds: Bounds) -> Dim:
        """How many of the `parts` the block that ends with `row` sees."""
        if self.causal_limit is None:
            return blocks
        seen = floordiv(substitute(self.causal_limit, {self.loop.range.var: last_row}), self.column_block, bounds) + 1
        least = interval(seen, bounds)
        return blocks if least is None or least[0] < 0 else minimum(seen, blocks, bounds)

    # what a block of rows holds

    def state_buffers(self, count: int) -> Block:
        """Buffers for the maximum and the sums of each row."""
        match = [Local(name, TensorType(self.dtype, (count,))) for name in (self.max_buffer, *self.sum_buffers)]
        wide = zip(self.accumulators, self.row.weighted_sums, strict=True)
        return (*match, *(Local(n, TensorType(self.dtype, (count, *(r.hi for r in p.loops)))) for n, p in wide))

    def initialize_state(self, count: Dim) -> Block:
        """Nothing seen yet."""
        here, clear = var(self.names["clear"]), Range(self.names["clear"], 0, count)
        zero = const(0, self.dtype)
        scalars = (
            Store(self.max_buffer, (here,), const(lowest(self.dtype), self.dtype)),
            *(Store(s, (here,), zero) for s in self.sum_buffers),
        )
        out: list[Stmt] = [For(clear, scalars)]
        for name, p in zip(self.accumulators, self.row.weighted_sums, strict=True):
            inner: Block = (Store(name, (here, *(var(r.var) for r in p.loops)), zero),)
            out.append(For(clear, nest_loops(p.loops, inner)))
        return tuple(out)

    # one part

    def update_state(self, lo: Dim, extent: Dim) -> For:
        """Every row's part of `extent` places from `lo` on."""
        row, names = self.row, self.names
        old, new = Ref(self.dtype, names["old"]), Ref(self.dtype, names["new"])
        weight = Ref(self.dtype, names["weight"])
        capacity = extent if isinstance(extent, int) else self.column_block
        out: list[Stmt] = [
            Local(n, TensorType(t.dtype, (capacity,))) for n, t in row.row_buffers.items() if self.is_stored(n)
        ]
        out += [*row.prologue, self.block_reduction(row.max_reduction, lo, extent)]
        out.append(Let(old.name, self.load_state(self.max_buffer)))
        out.append(Let(new.name, scalar.maximum(old, Ref(self.dtype, row.max_reduction.name))))
        out.append(Let(weight.name, scalar.where(old.eq(new), 1.0, scalar.exp(old - new))))
        out.append(Let(names["shift"], guarded_max(new)))
        for name, s in zip(self.sum_buffers, row.reductions, strict=True):
            out.append(self.block_reduction(s, lo, extent))
            out.append(self.store_state(name, scalar.fma(self.load_state(name), weight, Ref(self.dtype, s.name))))
        for name, p in zip(self.accumulators, row.weighted_sums, strict=True):
            at = tuple(var(r.var) for r in p.loops)
            total = scalar.fma(self.load_state(name, *at), weight, Ref(self.dtype, p.reduction.name))
            out.append(
                *nest_loops(
                    p.loops,
                    (*p.prologue, self.block_reduction(p.reduction, lo, extent), self.store_state(name, total, *at)),
                )
            )
        return For(self.row_range, (*out, self.store_state(self.max_buffer, new)))

    def block_reduction(self, s: Reduce, lo: Dim, extent: Dim) -> Reduce:
        """The same reduction over a part of the row, with what it has seen in place of the maximum."""
        max_names = {x.name for x in self.row.shifts if isinstance(x, Let)} | (
            {self.row.max_reduction.name} if s is not self.row.max_reduction else set()
        )

        def rule(e: Expr) -> Expr:
            if isinstance(e, Ref) and e.name in max_names:
                return Ref(e.dtype, self.names["shift"])
            if isinstance(e, Load) and e.buffer in self.row.row_buffers:
                return Load(e.dtype, e.buffer, tuple(d - lo for d in e.index), e.mask, e.other)
            return e

        def moved(stmt: Stmt) -> Block:
            if isinstance(stmt, Store) and stmt.buffer in self.row.row_buffers:
                return (replace(stmt, index=tuple(d - lo for d in stmt.index)),)
            return (stmt,)

        (inner,) = tile.map_exprs((s,), lambda e: scalar.transform(e, rule))
        assert isinstance(inner, Reduce)
        over = tuple(replace(r, lo=lo, hi=lo + extent) for r in inner.ranges)
        return replace(inner, ranges=over, body=tile.expand_stmts(inner.body, moved))

    # the results

    def finalize(self) -> For:
        """Each row's statements behind its sums."""
        row = self.row
        out: list[Stmt] = [*row.prologue]
        out.append(Let(row.max_reduction.name, self.load_state(self.max_buffer)))
        out += row.shifts
        out += [Let(s.name, self.load_state(name)) for name, s in zip(self.sum_buffers, row.reductions, strict=True)]
        out += row.epilogue
        for name, p in zip(self.accumulators, row.weighted_sums, strict=True):
            total = self.load_state(name, *(var(r.var) for r in p.loops))
            done = Let(p.reduction.name, total if p.divisor is None else total / p.divisor)
            out += nest_loops(p.loops, (*p.prologue, done, *p.epilogue))
        return For(self.row_range, tuple(out))

    # small things

    def is_stored(self, buffer: str) -> bool:
        """Whether a part stores to a buffer that its rows kept."""
        sums = (self.row.max_reduction, *self.row.reductions, *(p.reduction for p in self.row.weighted_sums))
        return any(isinstance(s, Store) and s.buffer == buffer for s in tile.walk(sums))

    def load_state(self, buffer: str, *at: Dim) -> Load:
        return Load(self.dtype, buffer, (self.row_index, *at))

    def store_state(self, buffer: str, value: Expr, *at: Dim) -> Store:
        return Store(buffer, (self.row_index, *at), value)


def nest_loops(chain: tuple[Range, ...], body: Block) -> Block:
    """Loops over `chain` around `body`."""
    for r in reversed(chain):
        body = (For(r, body),)
    return body
