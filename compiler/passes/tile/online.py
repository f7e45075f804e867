"""Take long rows in parts: attention without a matrix of scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import scalar, tile
from compiler.ir.index import Bounds, Dim, ceildiv, floordiv, interval, minimum, substitute, var, variables
from compiler.ir.scalar import Expr, Load, Ref, const
from compiler.ir.structure import lowest
from compiler.ir.tile import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, known
from compiler.ir.types import TensorType
from compiler.passes.access import in_nest, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh, with_unique_names
from compiler.passes.rescale import Row, guarded, last_seen, row_of


@register
@dataclass(frozen=True)
class Online(TilePass):
    """for %i { local %s  %m = reduce max %r { ... }  %t = reduce add %r { exp(%s[%r] - %m) }  for %j { reduce add %r { ... } } }
    ->  for %i.block { local %top  local %sum  local %acc  for %part { for %i in %i.block { ... } }  for %i in %i.block { ... } }

    A part of the row is computed for a block of rows while what they all read is near; each row holds the maximum and the sums so far,
    and rescales them where the maximum grows.  No row is ever stored whole.  See compiler.passes.rescale, and Dao et al.,
    "FlashAttention", 2022.  Pays for rows of more than `longest` elements, and for shorter ones of which each sees only the
    places up to its own: parts that no row of a block sees are left out, whatever they hold, and `causal` places and rows
    go together.  Rows of open length are long if they may be: of a short one there is a part alone.
    """

    name = "online"
    longest: int = 640
    part: int = 256
    rows: int = 512
    causal: int = 64

    def run(self, ir: Kernel, context: Context) -> Kernel:
        row = self.row(ir)
        if row is None:
            return ir
        nest, last = nested_fors(ir.body), last_seen(row.top)
        part, rows = (self.part, self.rows) if last is None else (self.causal, self.causal)
        body = in_nest(nest[:-1], Parts(row, nest[-1], last, Fresh(ir), part).in_blocks(rows))
        seen = "" if last is None else f", those behind {last} left out"
        context.applied(self, f"rows of {row.extent} in parts of {part}{seen}; sums rescaled as the maximum grows")
        return with_unique_names(ir.with_body(body))

    def row(self, ir: Kernel) -> Row | None:
        """The long row that the innermost of the kernel's parallel loops computes, if it can be taken in parts."""
        nest = nested_fors(ir.body)
        if not nest or not all(f.parallel for f in nest) or nest[-1].range.lo != 0:
            return None
        row = row_of(nest[-1].body)
        length = None if row is None else interval(row.extent, {})
        if row is None or variables(nest[-1].range.hi) or length is None or length[0] < 1:
            return None
        long = length[1] > self.longest or (length[1] >= 2 * self.causal and last_seen(row.top) is not None)
        return row if long else None


class Parts:
    """The statements of a row, spread over parts of it."""

    def __init__(self, row: Row, loop: For, last: Dim | None, fresh: Fresh, part: int) -> None:
        self.row, self.loop, self.last, self.part = row, loop, last, part
        self.dtype = row.top.value.dtype
        self.top = fresh("top")
        self.sums = [fresh(f"{s.name}.sum") for s in row.sums]
        self.products = [fresh(f"{p.sum.name}.sum") for p in row.products]
        self.block, self.step = fresh(f"{loop.range.var}.block"), fresh(f"{row.top.ranges[0].var}.part")
        self.names = {n: fresh(n) for n in ("old", "new", "shift", "weight", "clear")}

    def in_blocks(self, most: int) -> Block:
        """Blocks of at most `most` rows, equal but for the last one."""
        count = self.loop.range.hi
        size = self.rows_of_block(count, most)
        blocks = ceildiv(count, size)
        start = var(self.block) * size if blocks != 1 else 0
        body = self.rows(start, size, {self.block: (0, blocks - 1)})
        return (For(Range(self.block, 0, blocks), body, parallel=True),) if blocks != 1 else body

    def rows_of_block(self, count: Dim, most: int) -> int:
        """How many of `count` rows are taken together."""
        rows = known(count)
        blocks = -(-rows // most)
        if blocks == 1 or self.last is not None:
            return min(most, count) if isinstance(count, int) else most
        return rows // blocks if rows % blocks == 0 else -(-rows // blocks // 8) * 8

    def rows(self, start: Dim, size: int, bounds: Bounds) -> Block:
        """At most `size` rows from `start` on: what they hold, cleared, carried through the parts, and made their results."""
        count = minimum(size, self.loop.range.hi - start, bounds)
        self.place = var(self.loop.range.var) - start
        self.over = replace(self.loop.range, lo=start, hi=start + count)
        whole, last = self.row.extent // self.part, start + count - 1
        rest = self.row.extent - whole * self.part
        parts = [self.along_row(0, self.seen(last, whole, bounds), self.part)]
        end = self.seen(last, ceildiv(self.row.extent, self.part), bounds)
        beyond = interval(end - whole, bounds)
        if rest != 0 and (beyond is None or beyond[1] > 0):
            parts.append(self.along_row(whole, end, rest))
        return (*self.held(size), *self.cleared(count), *parts, self.finished())

    def along_row(self, first: Dim, end: Dim, extent: Dim) -> For:
        """The parts `first`..`end`-1, each of `extent` places; the one behind the whole parts is there or not."""
        return For(Range(self.step, first, end), (self.through(var(self.step) * self.part, extent),))

    def seen(self, row: Dim, parts: Dim, bounds: Bounds) -> Dim:
        """How many of the `parts` the block that ends with `row` sees."""
        if self.last is None:
            return parts
        seen = floordiv(substitute(self.last, {self.loop.range.var: row}), self.part, bounds) + 1
        least = interval(seen, bounds)
        return parts if least is None or least[0] < 0 else minimum(seen, parts, bounds)

    # what a block of rows holds

    def held(self, count: int) -> Block:
        """Buffers for the maximum and the sums of each row."""
        row = [Local(name, TensorType(self.dtype, (count,))) for name in (self.top, *self.sums)]
        wide = zip(self.products, self.row.products, strict=True)
        return (*row, *(Local(n, TensorType(self.dtype, (count, *(r.hi for r in p.chain)))) for n, p in wide))

    def cleared(self, count: Dim) -> Block:
        """Nothing seen yet."""
        here, clear = var(self.names["clear"]), Range(self.names["clear"], 0, count)
        zero = const(0, self.dtype)
        scalars = (
            Store(self.top, (here,), const(lowest(self.dtype), self.dtype)),
            *(Store(s, (here,), zero) for s in self.sums),
        )
        out: list[Stmt] = [For(clear, scalars)]
        for name, p in zip(self.products, self.row.products, strict=True):
            inner: Block = (Store(name, (here, *(var(r.var) for r in p.chain)), zero),)
            out.append(For(clear, nested(p.chain, inner)))
        return tuple(out)

    # one part

    def through(self, lo: Dim, extent: Dim) -> For:
        """Every row's part of `extent` places from `lo` on."""
        row, names = self.row, self.names
        old, new = Ref(self.dtype, names["old"]), Ref(self.dtype, names["new"])
        weight = Ref(self.dtype, names["weight"])
        room = extent if isinstance(extent, int) else self.part
        out: list[Stmt] = [Local(n, TensorType(t.dtype, (room,))) for n, t in row.kept.items() if self.used(n)]
        out += [*row.before, self.along(row.top, lo, extent)]
        out.append(Let(old.name, self.load(self.top)))
        out.append(Let(new.name, scalar.maximum(old, Ref(self.dtype, row.top.name))))
        out.append(Let(weight.name, scalar.where(old.eq(new), 1.0, scalar.exp(old - new))))
        out.append(Let(names["shift"], guarded(new)))
        for name, s in zip(self.sums, row.sums, strict=True):
            out.append(self.along(s, lo, extent))
            out.append(self.store(name, scalar.fma(self.load(name), weight, Ref(self.dtype, s.name))))
        for name, p in zip(self.products, row.products, strict=True):
            at = tuple(var(r.var) for r in p.chain)
            total = scalar.fma(self.load(name, *at), weight, Ref(self.dtype, p.sum.name))
            out.append(*nested(p.chain, (*p.before, self.along(p.sum, lo, extent), self.store(name, total, *at))))
        return For(self.over, (*out, self.store(self.top, new)))

    def along(self, s: Reduce, lo: Dim, extent: Dim) -> Reduce:
        """The same reduction over a part of the row, with what it has seen in place of the maximum."""
        tops = {x.name for x in self.row.shifts if isinstance(x, Let)} | (
            {self.row.top.name} if s is not self.row.top else set()
        )

        def rule(e: Expr) -> Expr:
            if isinstance(e, Ref) and e.name in tops:
                return Ref(e.dtype, self.names["shift"])
            if isinstance(e, Load) and e.buffer in self.row.kept:
                return Load(e.dtype, e.buffer, tuple(d - lo for d in e.index), e.mask, e.other)
            return e

        def moved(stmt: Stmt) -> Block:
            if isinstance(stmt, Store) and stmt.buffer in self.row.kept:
                return (replace(stmt, index=tuple(d - lo for d in stmt.index)),)
            return (stmt,)

        (inner,) = tile.map_exprs((s,), lambda e: scalar.transform(e, rule))
        assert isinstance(inner, Reduce)
        over = tuple(replace(r, lo=lo, hi=lo + extent) for r in inner.ranges)
        return replace(inner, ranges=over, body=tile.expand_stmts(inner.body, moved))

    # the results

    def finished(self) -> For:
        """Each row's statements behind its sums."""
        row = self.row
        out: list[Stmt] = [*row.before]
        out.append(Let(row.top.name, self.load(self.top)))
        out += row.shifts
        out += [Let(s.name, self.load(name)) for name, s in zip(self.sums, row.sums, strict=True)]
        out += row.after
        for name, p in zip(self.products, row.products, strict=True):
            total = self.load(name, *(var(r.var) for r in p.chain))
            done = Let(p.sum.name, total if p.divisor is None else total / p.divisor)
            out += nested(p.chain, (*p.before, done, *p.after))
        return For(self.over, tuple(out))

    # small things

    def used(self, buffer: str) -> bool:
        """Whether a part stores to a buffer that its rows kept."""
        sums = (self.row.top, *self.row.sums, *(p.sum for p in self.row.products))
        return any(isinstance(s, Store) and s.buffer == buffer for s in tile.walk(sums))

    def load(self, buffer: str, *at: Dim) -> Load:
        return Load(self.dtype, buffer, (self.place, *at))

    def store(self, buffer: str, value: Expr, *at: Dim) -> Store:
        return Store(buffer, (self.place, *at), value)


def nested(chain: tuple[Range, ...], body: Block) -> Block:
    """Loops over `chain` around `body`."""
    for r in reversed(chain):
        body = (For(r, body),)
    return body
