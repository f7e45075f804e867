"""Take sums and what becomes of them apart where an open loop leaves rows over, so that only sums are written out for each number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from compiler.ir import scalar, tile
from compiler.ir.index import var, variables
from compiler.ir.names import referenced
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.tile import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, leaves_rows
from compiler.ir.types import TensorType
from compiler.passes.access import in_nest, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh
from compiler.passes.tile.peel import WRITTEN, every_rest
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Apart(TilePass):
    """parallel %i in 0..n tile 8 { parallel %j lanes 16 { %s = reduce %k { ... }  store f(%s), %y[%i, %j] } }
    ->  parallel %j lanes 16 { parallel %i in 0..n//8*8 tile 8 { %s = reduce %k { ... }  store f(%s), %y[%i, %j] }
                               local %t  parallel %i in n//8*8..n tile 8 { %s = reduce %k { ... }  store %s, %t[%i - n//8*8] }
                               parallel %i in n//8*8..n { store f(%t[%i - n//8*8]), %y[%i, %j] } }

    Where code for every number of rows would be more than `written` operations, and for their sums alone is not.  The loops
    between go around all rows if there are `slices` steps for every thread, so that what is left over finds the panels near that
    the rows before it have read; else around what is left alone.
    """

    name = "apart"
    exact = True
    written: int = WRITTEN
    slices: int = 4

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh, wanted = Fresh(ir), self.slices * (context.machine or Machine()).threads
        outermost = {s.range.var for s in ir.body if isinstance(s, For)}

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or not leaves_rows(stmt.range) or self.fits(stmt.range, stmt.body):
                return (stmt,)
            _, *nest = nested_fors((stmt,))
            inside = nest[-1].body if nest else stmt.body
            sums = needed(inside, {s.name for s in inside if isinstance(s, Reduce)})
            alone = not nest and stmt.range.var in outermost  # threads could not share what is left
            if alone or not free((stmt, *nest)) or not separable(inside, sums) or not self.fits(stmt.range, sums):
                return (stmt,)
            context.applied(
                self, f"rows that %{stmt.range.var} leaves over are summed together and finished one by one"
            )
            middle = stmt.range.lo + stmt.range.extent // stmt.range.tile * stmt.range.tile
            full = stmt.range.with_(hi=middle)
            rest = finished_apart(replace(stmt, range=stmt.range.with_(lo=middle)), inside, sums, fresh)
            if nest and prod(-(-tile.known_extent(f.range) // f.range.tile) for f in nest) < wanted:
                return (replace(stmt, range=full), *in_nest(nest, rest))
            return in_nest(nest, (replace(stmt, range=full, body=inside), *rest))

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def fits(self, rows: Range, body: Block) -> bool:
        """Whether code for every number of rows is short enough."""
        return not any(isinstance(s, Reduce) for s in tile.walk(body)) or every_rest(rows, body) <= self.written


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


def finished_apart(rows: For, body: Block, sums: Block, fresh: Fresh) -> Block:
    """One partial tile of rows that leaves its sums in buffers, and the rest of `body` for one row after the other."""
    place = (var(rows.range.var) - rows.range.lo,)
    totals = {s.name: s.value.dtype for s in sums if isinstance(s, Reduce)}
    kept = {name: Load(dtype, fresh(f"{name}.left"), place) for name, dtype in totals.items()}

    def read(e: Expr) -> Expr:
        return scalar.transform(e, lambda x: kept.get(x.name, x) if isinstance(x, Ref) else x)

    after = tile.map_exprs(tuple(s for s in body if not isinstance(s, Reduce)), read)
    ends = needed(after, set().union(*(referenced(s) for s in after if isinstance(s, Store))))
    finish = tuple(s for s in after if isinstance(s, Store) or s in ends)
    return (
        *(Local(t.buffer, TensorType(t.dtype, (rows.range.tile - 1,))) for t in kept.values()),
        replace(rows, body=(*sums, *(Store(t.buffer, place, Ref(t.dtype, name)) for name, t in kept.items()))),
        replace(rows, range=rows.range.with_(tile=1), body=finish),
    )
