"""Loop distribution: split a contraction from its epilogue to limit code size and register pressure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Dim, ceildiv, minimum, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store, has_partial_rows
from compiler.ir.tile.loop_nest import perfect_nest, wrap_in_nest
from compiler.ir.tile.substitution import NameSupply
from compiler.ir.tile.uses import used_names
from compiler.ir.types import TensorType
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.peel import MAX_EXPANDED_OPS, remainder_code_ops, unrolled_ops


@register
@dataclass(frozen=True)
class SplitEpilogue(TilePass):
    """Split reductions from their epilogue, tile by tile.

    parallel %i in 0..24 tile 8 { parallel %j lanes 16 { %s = reduce %k { ... }  store f(%s), %y[%i, %j] } }
    ->  parallel %i.tile in 0..3 { parallel %j lanes 16 {
          local %t
          for %i in %i.tile*8..%i.tile*8 + 8 tile 8 { %s = reduce %k { ... }  store %s, %t[%i - %i.tile*8] }
          for %i in %i.tile*8..%i.tile*8 + 8 { store f(%t[%i - %i.tile*8]), %y[%i, %j] } } }

    Applies in three cases.  Several reductions of a tile exceed the registers: LLVM would hold the first results, and
    spill the accumulators of the last at every step.  The epilogue of a tile has more than `max_epilogue_ops` operations:
    too many for registers and the instruction cache.  Code for all partial tiles of a dynamic extent would exceed
    `max_expanded_ops`, but for the reductions alone does not.
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
            if not are_interchangeable((stmt, *nest)) or not is_separable(inside, sums):
                return (stmt,)
            if not self.is_profitable(stmt, inside, sums, enclosing_loops, context):
                return (stmt,)
            context.applied(self, f"epilogue of %{stmt.range.var} split into its own loop")

            def tile_body(rows: For) -> Block:
                return wrap_in_nest(nest, split_epilogue(rows, inside, sums, fresh))

            return tile_loop(stmt, fresh, tile_body, rule)

        return ir.with_body(tile.expand_stmts(ir.body, rule))

    def is_profitable(
        self, rows: For, inside: Block, sums: Block, enclosing_loops: tuple[Range, ...], context: Context
    ) -> bool:
        """Return True if there are reductions, and one of the three cases of the class holds."""
        has_partial, epilogue = has_partial_rows(rows.range), tuple(s for s in inside if not isinstance(s, Reduce))
        if not sums or (has_partial and remainder_code_ops(rows.range, sums) > self.max_expanded_ops):
            return False
        vectors = rows.range.tile * prod(-(-r.tile // max(1, r.lanes)) for r in enclosing_loops)
        totals = sum(isinstance(s, Reduce) for s in sums)
        exceeds_registers = totals > 1 and vectors * totals >= context.machine.registers
        return (
            exceeds_registers
            or vectors * unrolled_ops(epilogue) > self.max_epilogue_ops
            or (has_partial and remainder_code_ops(rows.range, rows.body) > self.max_expanded_ops)
        )


def are_interchangeable(loops: tuple[For, ...]) -> bool:
    """Return True if the loops are parallel and no bound depends on another loop."""
    names = {f.range.var for f in loops}
    return all(f.parallel and not names & (variables(f.range.lo) | variables(f.range.hi)) for f in loops)


def is_separable(body: Block, sums: Block) -> bool:
    """Return True if `sums` may move before all other statements of a block.

    The block must store nothing that they read, have no loops but float reductions, and use none of them as an index.
    """
    stored = {s.buffer for s in body if isinstance(s, Store)}
    plain = all(isinstance(s, (Let, Store)) or (isinstance(s, Reduce) and s.value.dtype.is_float) for s in body)
    return plain and not stored & {e.buffer for e in tile.loads(sums)}


def backward_slice(body: Block, names: set[str]) -> Block:
    """Return the statements of a block that bind `names`, and those that they depend on."""
    statements: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, (Let, Reduce)) and s.name in names:
            statements.insert(0, s)
            names = names | used_names(s)
    return tuple(statements)


def tile_loop(rows: For, fresh: NameSupply, body: Callable[[For], Block], remainder: Callable[[For], Block]) -> Block:
    """Loop over the tiles of `rows` around the `body` of each, with the `remainder` of a static extent after it."""
    r, size = rows.range, rows.range.tile
    if isinstance(r.extent, int) and r.extent <= size:
        return body(replace(rows, range=r.with_(tile=r.extent)))
    tile_var = fresh(f"{r.var}.tile")
    start, count = r.lo + var(tile_var) * size, r.extent // size
    row_count: Dim = size
    if has_partial_rows(r):
        count, row_count = ceildiv(r.extent, size), minimum(size, r.hi - start)
    tile_rows = replace(rows, range=r.with_(lo=start, hi=start + row_count))
    tiles = replace(rows, range=Range(tile_var, 0, count), body=body(tile_rows))
    remaining = r.extent % size if isinstance(r.extent, int) else 0
    return (tiles, *(remainder(replace(rows, range=r.with_(lo=r.hi - remaining, tile=remaining))) if remaining else ()))


def split_epilogue(rows: For, body: Block, sums: Block, fresh: NameSupply) -> Block:
    """Build a tile of rows that stores its reductions in buffers, and a loop over rows with the rest of `body`."""
    index = (var(rows.range.var) - rows.range.lo,)
    totals = {s.name: s.value.dtype for s in sums if isinstance(s, Reduce)}
    row_loads = {name: Load(dtype, fresh(f"{name}.rows"), index) for name, dtype in totals.items()}

    def read(e: Expr) -> Expr:
        return scalar.transform(e, lambda x: row_loads.get(x.name, x) if isinstance(x, Ref) else x)

    def store_sum(s: Stmt) -> Block:
        """Store a reduction right after it, because the next one needs its registers."""
        return (Store(row_loads[s.name].buffer, index, Ref(s.value.dtype, s.name)),) if isinstance(s, Reduce) else ()

    epilogue = tile.map_exprs(tuple(s for s in body if not isinstance(s, Reduce)), read)
    stored_names = set().union(*(used_names(s) for s in epilogue if isinstance(s, Store)))
    needed_for_stores = backward_slice(epilogue, stored_names)
    row_body = tuple(s for s in epilogue if isinstance(s, Store) or s in needed_for_stores)
    return (
        *(Local(t.buffer, TensorType(t.dtype, (rows.range.tile,))) for t in row_loads.values()),
        For(rows.range, tuple(x for s in sums for x in (s, *store_sum(s)))),
        For(rows.range.with_(tile=1), row_body),
    )
