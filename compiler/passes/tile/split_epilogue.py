"""Take sums and what becomes of them apart where both together would be too much code, or too much for the registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.accesses import perfect_nest, wrap_in_nest
from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Dim, ceildiv, minimum, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, has_partial_rows
from compiler.ir.tile.substitution import NameSupply
from compiler.ir.tile.uses import used_names
from compiler.ir.types import TensorType
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.peel import MAX_EXPANDED_OPS, remainder_code_ops, unrolled_ops


@register
@dataclass(frozen=True)
class SplitEpilogue(TilePass):
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

    name = "split-epilogue"
    exact = True
    max_epilogue_ops: int = 1000
    max_expanded_ops: int = MAX_EXPANDED_OPS

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh, loops = NameSupply(ir), context.accesses(ir).loops

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For) or stmt.range.lanes or stmt.range.tile == 1:
                return (stmt,)
            _, *nest = perfect_nest((stmt,))
            inside = nest[-1].body if nest else stmt.body
            sums = backward_slice(inside, {s.name for s in inside if isinstance(s, Reduce)})
            enclosing_loops = (*loops[stmt.range.var][2], *(f.range for f in nest))
            if (
                not are_interchangeable((stmt, *nest))
                or not is_separable(inside, sums)
                or not self.is_profitable(stmt, inside, sums, enclosing_loops, context)
            ):
                return (stmt,)
            context.applied(self, f"rows of %{stmt.range.var} are summed together and finished one by one")
            return tile_loop(
                stmt, fresh, lambda rows: wrap_in_nest(nest, split_epilogue(rows, inside, sums, fresh)), rule
            )

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def is_profitable(
        self, rows: For, inside: Block, sums: Block, enclosing_loops: tuple[Range, ...], context: Context
    ) -> bool:
        """Whether there are sums, and what is `inside` is too long with them, or they are too many to wait in registers."""
        has_partial, epilogue = has_partial_rows(rows.range), tuple(s for s in inside if not isinstance(s, Reduce))
        if not sums or (has_partial and remainder_code_ops(rows.range, sums) > self.max_expanded_ops):
            return False
        vectors = rows.range.tile * prod(-(-r.tile // max(1, r.lanes)) for r in enclosing_loops)
        totals = sum(isinstance(s, Reduce) for s in sums)
        exceeds_registers = totals > 1 and vectors * totals >= (context.machine or Machine()).registers
        return (
            exceeds_registers
            or vectors * unrolled_ops(epilogue) > self.max_epilogue_ops
            or (has_partial and remainder_code_ops(rows.range, rows.body) > self.max_expanded_ops)
        )


def are_interchangeable(loops: tuple[For, ...]) -> bool:
    """Whether loops may change places: their steps are independent, and none is as long as another one says."""
    names = {f.range.var for f in loops}
    return all(f.parallel and not names & (variables(f.range.lo) | variables(f.range.hi)) for f in loops)


def is_separable(body: Block, sums: Block) -> bool:
    """Whether all `sums` of a block may come before the rest of it: it stores nothing that they read, has no loops of its own, and
    takes none of them for an index.
    """
    stored = {s.buffer for s in body if isinstance(s, Store)}
    plain = all(isinstance(s, (Let, Store)) or (isinstance(s, Reduce) and s.value.dtype.is_float) for s in body)
    return plain and not stored & {e.buffer for e in tile.loads(sums)}


def backward_slice(body: Block, names: set[str]) -> Block:
    """The statements of a block that bind `names`, and those that they need."""
    kept: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, (Let, Reduce)) and s.name in names:
            kept.insert(0, s)
            names = names | used_names(s)
    return tuple(kept)


def tile_loop(rows: For, fresh: NameSupply, body: Callable[[For], Block], remainder: Callable[[For], Block]) -> Block:
    """A loop over the tiles of `rows` around the `body` of each; what a known number of rows leaves over is the `rest` behind it."""
    r, size = rows.range, rows.range.tile
    if isinstance(r.extent, int) and r.extent <= size:
        return body(replace(rows, range=r.with_(tile=r.extent)))
    tile_var = fresh(f"{r.var}.tile")
    start, count = r.lo + var(tile_var) * size, r.extent // size
    length: Dim = size
    if has_partial_rows(r):
        count, length = ceildiv(r.extent, size), minimum(size, r.hi - start)
    within = replace(rows, range=r.with_(lo=start, hi=start + length))
    tiles = replace(rows, range=Range(tile_var, 0, count), body=body(within))
    left = r.extent % size if isinstance(r.extent, int) else 0
    return (tiles, *(remainder(replace(rows, range=r.with_(lo=r.hi - left, tile=left))) if left else ()))


def split_epilogue(rows: For, body: Block, sums: Block, fresh: NameSupply) -> Block:
    """One tile of rows that leaves its sums in buffers, and the rest of `body` for one row after the other."""
    place = (var(rows.range.var) - rows.range.lo,)
    totals = {s.name: s.value.dtype for s in sums if isinstance(s, Reduce)}
    row_loads = {name: Load(dtype, fresh(f"{name}.rows"), place) for name, dtype in totals.items()}

    def read(e: Expr) -> Expr:
        return scalar.transform(e, lambda x: row_loads.get(x.name, x) if isinstance(x, Ref) else x)

    def store_sum(s: Stmt) -> Block:
        """The store of a sum, right behind it: the next one needs its registers."""
        return (Store(row_loads[s.name].buffer, place, Ref(s.value.dtype, s.name)),) if isinstance(s, Reduce) else ()

    epilogue = tile.map_exprs(tuple(s for s in body if not isinstance(s, Reduce)), read)
    needed_for_stores = backward_slice(
        epilogue, set().union(*(used_names(s) for s in epilogue if isinstance(s, Store)))
    )
    finish = tuple(s for s in epilogue if isinstance(s, Store) or s in needed_for_stores)
    return (
        *(Local(t.buffer, TensorType(t.dtype, (rows.range.tile,))) for t in row_loads.values()),
        For(rows.range, tuple(step for s in sums for step in (s, *store_sum(s)))),
        For(rows.range.with_(tile=1), finish),
    )
