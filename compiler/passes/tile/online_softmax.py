"""Online softmax: compute attention block by block, without a matrix of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, prod

from compiler.analysis.score_factor import FactoredMax, factored_max, split_factor
from compiler.analysis.softmax_match import POWERS_OF_2, SoftmaxRow, guarded_max, last_unmasked_index, match_softmax_row
from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.graph.structure import lowest
from compiler.ir.scalar import Const, Expr, Load, PrimitiveCall, Ref, const
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
from compiler.ir.tile.contraction import contraction_of, uncast
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, dim_hint
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply, with_unique_names
from compiler.ir.tile.uses import used_names
from compiler.ir.types import DType, TensorType
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.tile.fuse_loops import FuseLoops
from compiler.transforms.split import strip_mine_to_end

LN_2 = log(2)

MIN_ROWS = 16
"""Fewest rows of a block that is made smaller so that more of them run at once: the smallest side of `tl.dot`."""


@register
@dataclass(frozen=True)
class OnlineSoftmax(TilePass):
    """Block long rows of softmax and the weighted sums behind it.

    for %i { local %s  %m = reduce max %r { ... }  %t = reduce add %r { exp(%s[%r] - %m) }  for %j { reduce add %r { ... } } }
    ->  for %i.block { local %max  local %sum  local %acc  for %r.block { for %i in %i.block { ... } }  for %i in %i.block { ... } }

    Each row keeps a running maximum and running sums, and rescales the sums when the maximum grows (Milakov and
    Gimelshein, 2018; Dao et al., "FlashAttention", 2022; matched by `compiler.analysis.softmax_match`).  A block of
    `column_block` columns is computed for `row_block` rows while their shared operands are in cache; no row is stored.
    Applies to rows of more than `max_untiled_length` elements, and to causal rows of at least two blocks of
    `causal_block`, the block size of both dimensions then.  Where no matrix unit multiplies the scores, blocks and shortest
    rows are smaller.  Causal blocks that no row sees are skipped, whatever they hold.  The upper bound of a dynamic length
    decides.

    Where scores are products c * x with a constant c of at most ln 2, as in attention, maxima are in units of ln 2, and one
    multiply-add scales and shifts a score: exp(c * x - max) = exp2(fma(x, c / ln 2, -max / ln 2)).  With a larger c, or sums as
    scores, x / ln 2 might overflow where exp does not.
    """

    name = "online-softmax"
    max_untiled_length: int = from_machine("softmax_untiled_length")
    column_block: int = from_machine("softmax_columns")
    row_block: int = from_machine("softmax_rows")
    causal_block: int = from_machine("softmax_causal_block")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        row = self.match_row(ir, context.machine)
        if row is None:
            return ir
        nest, causal_limit = perfect_nest(ir.body), last_unmasked_index(row.max_reduction)
        causal = causal_limit is not None
        share = context.machine.softmax_share(scores_dtype(row).name)
        column_block = row_block = max(1, int(self.causal_block * share))
        if not causal:
            column_block = max(1, int(self.column_block * share))
            row_block = self.shared_row_block(nest, self.row_block, context.machine)
        builder = OnlineSoftmaxBuilder(row, nest[-1], causal_limit, NameSupply(ir), column_block)
        skipped = f", those after {causal_limit} skipped" if causal else ""
        if not context.may_apply(self, f"online softmax: rows of {row.extent} in blocks of {column_block}{skipped}"):
            return ir
        return with_unique_names(ir.with_body(wrap_in_nest(nest[:-1], builder.row_block_loop(row_block))))

    @staticmethod
    def shared_row_block(nest: Sequence[For], row_block: int, machine: Machine) -> int:
        """Return the rows of a block, halved while there are fewer blocks than run at once."""
        *others, rows = (dim_hint(f.range.extent) for f in nest)
        while row_block > MIN_ROWS and prod(others) * -(-rows // row_block) < machine.concurrent_blocks:
            row_block //= 2
        return row_block

    def match_row(self, ir: Kernel, machine: Machine) -> SoftmaxRow | None:
        """Match the softmax row that the innermost parallel loop computes; None if there is none, or if it is short."""
        nest = perfect_nest(ir.body)
        if not nest or not all(f.parallel for f in nest) or nest[-1].range.lo != 0:
            return None
        row = match_softmax_row(nest[-1].body)
        length = None if row is None else interval(row.extent, {})
        if row is None or variables(nest[-1].range.hi) or length is None or length[0] < 1:
            return None
        is_causal = last_unmasked_index(row.max_reduction) is not None
        longest = self.max_untiled_length * machine.softmax_share(scores_dtype(row).name)
        is_long = length[1] > longest or (is_causal and length[1] >= 2 * self.causal_block)
        return row if is_long else None


def scores_dtype(row: SoftmaxRow) -> DType:
    """Return the dtype of the operands whose product the scores of a row are; that of the scores if they are no product."""
    products = filter(None, map(contraction_of, tile.walk((row.max_reduction,))))
    return next((uncast(c.lhs).dtype for c in products), row.max_reduction.value.dtype)


class OnlineSoftmaxBuilder:
    """Builder of the blocked loops that compute a softmax row."""

    def __init__(
        self, match: SoftmaxRow, loop: For, causal_limit: Dim | None, fresh: NameSupply, column_block: int
    ) -> None:
        self.row, self.loop, self.causal_limit, self.column_block = match, loop, causal_limit, column_block
        self.dtype = match.max_reduction.value.dtype
        scores = factored_max(match.max_reduction)
        self.in_base_2 = scores.factor <= LN_2
        self.scores = scores if self.in_base_2 else FactoredMax(match.max_reduction, 1.0)
        self.max_buffer = fresh("max")
        self.sum_buffers = [fresh(f"{s.name}.sum") for s in match.reductions]
        self.accumulators = [fresh(f"{p.reduction.name}.sum") for p in match.weighted_sums]
        self.row_block_var = fresh(f"{loop.range.var}.block")
        self.column_block_var = fresh(f"{match.max_reduction.ranges[0].var}.block")
        self.names = {n: fresh(n) for n in ("old", "new", "shift", "weight", "init")}

    def row_block_loop(self, max_rows: int) -> Block:
        """Build the loop over blocks of at most `max_rows` rows; all but the last have the same size."""
        rows = self.loop.range
        size = self.row_block_size(rows.hi, max_rows)
        blocks = strip_mine_to_end(rows, size, self.row_block_var)
        if blocks.outer.extent == 1:
            return self.row_block_body(rows.with_(hi=minimum(size, rows.hi)), size, {})
        body = self.row_block_body(blocks.inner, size, {blocks.outer.var: (0, blocks.outer.hi - 1)})
        return (For(blocks.outer, body, parallel=True),)

    def row_block_size(self, count: Dim, max_rows: int) -> int:
        """Return the number of rows in a block: balanced, and a multiple of 8 if that does not divide `count`."""
        rows = dim_hint(count)
        blocks = -(-rows // max_rows)
        if blocks == 1 or self.causal_limit is not None:
            return min(max_rows, count) if isinstance(count, int) else max_rows
        return rows // blocks if rows % blocks == 0 else -(-rows // blocks // 8) * 8

    def row_block_body(self, rows: Range, size: int, bounds: Bounds) -> Block:
        """Build a block of at most `size` rows: state, its initialization, column blocks, and results."""
        self.row_index, self.row_range = var(rows.var) - rows.lo, rows
        return (
            *self.state_buffers(size),
            *self.initialize_state(rows.extent),
            *self.column_loops(rows.hi - 1, bounds),
            self.finalize(),
        )

    def column_loops(self, last_row: Dim, bounds: Bounds) -> Block:
        """Build the loops over full column blocks and over the remainder.

        They are one loop for dynamic lengths, whose code is long.  Causal blocks are short, so full ones keep a loop of their own.
        """
        columns, block = self.row.extent, self.column_block
        full_blocks, all_blocks = columns // block, ceildiv(columns, block)
        if not isinstance(columns, int) and self.causal_limit is None:
            return (self.column_block_loop(0, all_blocks, minimum(block, columns - self.column_start)),)
        loops = [self.column_block_loop(0, self.visible_blocks(last_row, full_blocks, bounds), block)]
        end = self.visible_blocks(last_row, all_blocks, bounds)
        bounds_beyond = interval(end - full_blocks, bounds)
        if columns % block != 0 and (bounds_beyond is None or bounds_beyond[1] > 0):
            loops.append(self.column_block_loop(full_blocks, end, columns - full_blocks * block))
        return tuple(loops)

    @property
    def column_start(self) -> Dim:
        """Return the first column of a block."""
        return var(self.column_block_var) * self.column_block

    def column_block_loop(self, first: Dim, end: Dim, extent: Dim) -> For:
        """Build the loop over column blocks first..end-1 of `extent` columns each."""
        return For(Range(self.column_block_var, first, end), (self.update_state(self.column_start, extent),))

    def visible_blocks(self, last_row: Dim, blocks: Dim, bounds: Bounds) -> Dim:
        """Return how many of the column `blocks` a row block that ends with `last_row` sees."""
        if self.causal_limit is None:
            return blocks
        visible = (
            floordiv(substitute(self.causal_limit, {self.loop.range.var: last_row}), self.column_block, bounds) + 1
        )
        limits = interval(visible, bounds)
        return blocks if limits is None or limits[0] < 0 else minimum(visible, blocks, bounds)

    # state of a block of rows

    def state_buffers(self, count: int) -> Block:
        """Declare buffers for the maximum and the sums of each row."""
        shapes: dict[str, tuple[Dim, ...]] = dict.fromkeys((self.max_buffer, *self.sum_buffers), (count,))
        sums = zip(self.accumulators, self.row.weighted_sums, strict=True)
        shapes |= {name: (count, *(r.hi for r in p.loops)) for name, p in sums}
        return tuple(Local(name, TensorType(self.dtype, shape)) for name, shape in shapes.items())

    def initialize_state(self, count: Dim) -> Block:
        """Set maxima to the lowest value and sums to 0."""
        row, rows = var(self.names["init"]), Range(self.names["init"], 0, count)
        zero = const(0, self.dtype)
        scalars = (
            Store(self.max_buffer, (row,), const(lowest(self.dtype), self.dtype)),
            *(Store(s, (row,), zero) for s in self.sum_buffers),
        )
        out: list[Stmt] = [For(rows, scalars)]
        for name, p in zip(self.accumulators, self.row.weighted_sums, strict=True):
            inner: Block = (Store(name, (row, *(var(r.var) for r in p.loops)), zero),)
            out.append(For(rows, wrap_in_nest(p.loops, inner)))
        return tuple(out)

    # one column block

    def update_state(self, lo: Dim, extent: Dim) -> For:
        """Build the loop that updates the state of every row with `extent` columns from `lo`."""
        row, names = self.row, self.names
        old, new = Ref(self.dtype, names["old"]), Ref(self.dtype, names["new"])
        rescale = Ref(self.dtype, names["weight"])
        capacity = extent if isinstance(extent, int) else self.column_block
        out: list[Stmt] = [
            Local(n, TensorType(t.dtype, (capacity,))) for n, t in row.row_buffers.items() if self.is_stored(n)
        ]
        out += [*row.prologue, self.block_reduction(self.scores.reduction, lo, extent)]
        top: Expr = Ref(self.dtype, row.max_reduction.name)
        out.append(Let(old.name, self.load_state(self.max_buffer)))
        out.append(
            Let(new.name, scalar.maximum(old, top * self.rounded(self.scores.factor / LN_2) if self.in_base_2 else top))
        )
        exp = scalar.exp2_ftz if self.in_base_2 else scalar.exp_ftz
        out.append(Let(rescale.name, scalar.where(old.eq(new), 1.0, exp(old - new))))
        out.append(Let(names["shift"], guarded_max(new)))
        for name, s in zip(self.sum_buffers, row.reductions, strict=True):
            out.append(self.block_reduction(s, lo, extent))
            out.append(self.store_state(name, scalar.fma(self.load_state(name), rescale, Ref(self.dtype, s.name))))
        for name, p in zip(self.accumulators, row.weighted_sums, strict=True):
            at = tuple(var(r.var) for r in p.loops)
            total = scalar.fma(self.load_state(name, *at), rescale, Ref(self.dtype, p.reduction.name))
            update = (self.block_reduction(p.reduction, lo, extent), self.store_state(name, total, *at))
            out += wrap_in_nest(p.loops, (*p.prologue, *update))
        return For(self.row_range, (*out, self.store_state(self.max_buffer, new)))

    def block_reduction(self, s: Reduce, lo: Dim, extent: Dim) -> Reduce:
        """Restrict a reduction to a column block, with the running maximum in place of the row's maximum."""
        max_names = {x.name for x in self.row.shifts if isinstance(x, Let)}
        max_names |= {self.row.max_reduction.name} if s is not self.scores.reduction else set()
        shift = Ref(self.dtype, self.names["shift"])

        def rule(e: Expr) -> Expr:
            if isinstance(e, Ref) and e.name in max_names:
                return shift
            if isinstance(e, Load) and e.buffer in self.row.row_buffers:
                load = Load(e.dtype, e.buffer, tuple(d - lo for d in e.index), e.mask, e.other)
                return load * self.scores.factor if e.buffer in self.scores.buffers else load
            return self.shifted_exp2(e, shift) if self.in_base_2 and isinstance(e, PrimitiveCall) else e

        def rebase(stmt: Stmt) -> Block:
            if isinstance(stmt, Store) and stmt.buffer in self.row.row_buffers:
                return (replace(stmt, index=tuple(d - lo for d in stmt.index)),)
            return (stmt,)

        (reduction,) = tile.map_exprs((s,), lambda e: scalar.transform(e, rule))
        assert isinstance(reduction, Reduce)
        ranges = tuple(replace(r, lo=lo, hi=lo + extent) for r in reduction.ranges)
        return replace(reduction, ranges=ranges, body=tile.expand_stmts(reduction.body, rebase))

    def shifted_exp2(self, e: PrimitiveCall, shift: Expr) -> Expr:
        """Return exp(c * x - `shift`) as a power of two, whose shift is in units of ln 2; other calls as they are."""
        difference, power = e.operands[0], POWERS_OF_2.get(e.primitive)
        if power is None or not isinstance(difference, PrimitiveCall) or difference.operands[-1] != shift:
            return e
        x, factor = split_factor(difference.operands[0])
        return power(scalar.fma(x, self.rounded(factor / LN_2), -shift))

    # the results

    def finalize(self) -> For:
        """Build the loop over rows that computes results from the state."""
        row = self.row
        out = [*row.shifts]
        out += [Let(s.name, self.load_state(name)) for name, s in zip(self.sum_buffers, row.reductions, strict=True)]
        out += row.epilogue
        for name, p in zip(self.accumulators, row.weighted_sums, strict=True):
            total = self.load_state(name, *(var(r.var) for r in p.loops))
            result = Let(p.reduction.name, total if p.divisor is None else total / p.divisor)
            out += wrap_in_nest(p.loops, (*p.prologue, result, *p.epilogue))
        if any(row.max_reduction.name in used_names(s) for s in out):
            top = self.load_state(self.max_buffer)
            out = [Let(row.max_reduction.name, top * self.rounded(LN_2) if self.in_base_2 else top), *out]
        return For(self.row_range, (*row.prologue, *out))

    # helpers

    def is_stored(self, buffer: str) -> bool:
        """Return True if a reduction of the row stores to `buffer`."""
        sums = (self.row.max_reduction, *self.row.reductions, *(p.reduction for p in self.row.weighted_sums))
        return any(isinstance(s, Store) and s.buffer == buffer for s in tile.walk(sums))

    def rounded(self, value: float) -> Const:
        """Return a constant of the dtype of the scores."""
        return const(float(scalar.round_to(value, self.dtype)), self.dtype)

    def load_state(self, buffer: str, *at: Dim) -> Load:
        return Load(self.dtype, buffer, (self.row_index, *at))

    def store_state(self, buffer: str, value: Expr, *at: Dim) -> Store:
        return Store(buffer, (self.row_index, *at), value)


def uses_online_softmax(kernel: Kernel, context: Context) -> bool:
    """Return True if `online-softmax` will block the kernel's rows, so that they share what they reread."""
    fused, softmax = FuseLoops().run(kernel, context.trial()), OnlineSoftmax().for_machine(context.machine)
    return softmax.match_row(fused, context.machine) is not None
