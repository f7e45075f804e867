"""Take sums and what becomes of them apart where both together would be too much code, or too much for the registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from compiler.ir import scalar, tile
from compiler.ir.index import Dim, ceildiv, minimum, var, variables
from compiler.ir.names import referenced
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.tile import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, leaves_rows
from compiler.ir.types import TensorType
from compiler.passes.access import in_nest, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh
from compiler.passes.tile.peel import WRITTEN, every_rest, operations
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Apart(TilePass):
    """parallel %i in 0..24 tile 8 { parallel %j lanes 16 { %s = reduce %k { ... }  store f(%s), %y[%i, %j] } }
    ->  parallel %i.tile in 0..3 { parallel %j lanes 16 {
          local %t
          for %i in %i.tile*8..%i.tile*8 + 8 tile 8 { %s = reduce %k { ... }  store %s, %t[%i - %i.tile*8] }
          for %i in %i.tile*8..%i.tile*8 + 8 { store f(%t[%i - %i.tile*8]), %y[%i, %j] } } }

    Where several sums of a tile are more vectors than there are registers: LLVM keeps the first ones while it computes the last,
    and takes accumulators of these to memory and back at every step.  Where a tile of all that becomes of sums is more than
    `whole` operations, for which registers and the cache of instructions are too small.  Also where code for every number of
    rows that an open length may leave over would be more than `written`, and for the sums alone is not; the last tile then
    ends where the rows do.
    """

    name = "apart"
    exact = True
    whole: int = 1000
    written: int = WRITTEN

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh, loops = Fresh(ir), context.accesses(ir).loops

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or stmt.range.lanes or stmt.range.tile == 1:
                return (stmt,)
            _, *nest = nested_fors((stmt,))
            inside = nest[-1].body if nest else stmt.body
            sums = needed(inside, {s.name for s in inside if isinstance(s, Reduce)})
            around = (*loops[stmt.range.var][2], *(f.range for f in nest))
            if (
                not free((stmt, *nest))
                or not separable(inside, sums)
                or not self.pays(stmt, inside, sums, around, context)
            ):
                return (stmt,)
            context.applied(self, f"rows of %{stmt.range.var} are summed together and finished one by one")
            return in_tiles(stmt, fresh, lambda rows: in_nest(nest, finished_apart(rows, inside, sums, fresh)), rule)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def pays(self, rows: For, inside: Block, sums: Block, around: tuple[Range, ...], context: Context) -> bool:
        """Whether there are sums, and what is `inside` is too long with them, or they are too many to wait in registers."""
        open_, rest = leaves_rows(rows.range), tuple(s for s in inside if not isinstance(s, Reduce))
        if not sums or (open_ and every_rest(rows.range, sums) > self.written):
            return False
        vectors = rows.range.tile * prod(-(-r.tile // max(1, r.lanes)) for r in around)
        totals = sum(isinstance(s, Reduce) for s in sums)
        crowded = totals > 1 and vectors * totals >= (context.machine or Machine()).registers
        return (
            crowded
            or vectors * operations(rest) > self.whole
            or (open_ and every_rest(rows.range, rows.body) > self.written)
        )


def free(loops: tuple[For, ...]) -> bool:
    """Whether loops may change places: their steps are independent, and none is as long as another one says."""
    names = {f.range.var for f in loops}
    return all(f.parallel and not names & (variables(f.range.lo) | variables(f.range.hi)) for f in loops)


def separable(body: Block, sums: Block) -> bool:
    """Whether all `sums` of a block may come before the rest of it: it stores nothing that they read, has no loops of its own, and
    takes none of them for an index.
    """
    stored = {s.buffer for s in body if isinstance(s, Store)}
    plain = all(isinstance(s, (Let, Store)) or (isinstance(s, Reduce) and s.value.dtype.is_float) for s in body)
    return plain and not stored & {e.buffer for e in tile.loads(sums)}


def needed(body: Block, names: set[str]) -> Block:
    """The statements of a block that bind `names`, and those that they need."""
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, (Let, Reduce)) and s.name in names:
            kept.insert(0, s)
            names = names | referenced(s)
    return tuple(kept)


def in_tiles(rows: For, fresh: Fresh, body: Callable[[For], Block], rest: Callable[[For], Block]) -> Block:
    """A loop over the tiles of `rows` around the `body` of each; what a known number of rows leaves over is the `rest` behind it."""
    r, size = rows.range, rows.range.tile
    if isinstance(r.extent, int) and r.extent <= size:
        return body(replace(rows, range=r.with_(tile=r.extent)))
    number = fresh(f"{r.var}.tile")
    start, count = r.lo + var(number) * size, r.extent // size
    length: Dim = size
    if leaves_rows(r):
        count, length = ceildiv(r.extent, size), minimum(size, r.hi - start)
    within = replace(rows, range=r.with_(lo=start, hi=start + length))
    tiles = replace(rows, range=Range(number, 0, count), body=body(within))
    left = r.extent % size if isinstance(r.extent, int) else 0
    return (tiles, *(rest(replace(rows, range=r.with_(lo=r.hi - left, tile=left))) if left else ()))


def finished_apart(rows: For, body: Block, sums: Block, fresh: Fresh) -> Block:
    """One tile of rows that leaves its sums in buffers, and the rest of `body` for one row after the other."""
    place = (var(rows.range.var) - rows.range.lo,)
    totals = {s.name: s.value.dtype for s in sums if isinstance(s, Reduce)}
    kept = {name: Load(dtype, fresh(f"{name}.rows"), place) for name, dtype in totals.items()}

    def read(e: Expr) -> Expr:
        return scalar.transform(e, lambda x: kept.get(x.name, x) if isinstance(x, Ref) else x)

    def leave(s: Stmt) -> Block:
        """The store of a sum, right behind it: the next one needs its registers."""
        return (Store(kept[s.name].buffer, place, Ref(s.value.dtype, s.name)),) if isinstance(s, Reduce) else ()

    after = tile.map_exprs(tuple(s for s in body if not isinstance(s, Reduce)), read)
    ends = needed(after, set().union(*(referenced(s) for s in after if isinstance(s, Store))))
    finish = tuple(s for s in after if isinstance(s, Store) or s in ends)
    return (
        *(Local(t.buffer, TensorType(t.dtype, (rows.range.tile,))) for t in kept.values()),
        For(rows.range, tuple(step for s in sums for step in (s, *leave(s)))),
        For(rows.range.with_(tile=1), finish),
    )
