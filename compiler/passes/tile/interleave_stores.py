"""Stores side by side: what lanes store apart becomes rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.shuffles import is_interleaved
from compiler.ir.scalar import Expr, index_value, where
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Range, Stmt, Store
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class InterleaveStores(TilePass):
    """Store neighbours by one statement where each store alone would leave elements out between lanes.

    for %i in 0..n tile 16 lanes 16 { store %a, %y[%i*2]  store %b, %y[%i*2 + 1] }
    ->  for %i in 0..n tile 16 lanes 16 { for %c in 0..2 tile 2 { store where(%c - 1 < 0, %a, %b), %y[%i*2 + %c] } }

    Code generation knows each choice, and stores rows that lie close together as whole vectors.  Applies to stores of one block with
    only bindings and other stores between them: nothing reads or overwrites what they store or load.

    Nuzman, Rosen and Zaks, "Auto-Vectorization of Interleaved Data for SIMD", 2006.
    """

    name = "interleave-stores"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if not any(isinstance(s, For) and s.range.lanes for s in tile.walk(ir.body)):
            return ir
        table, fresh = context.accesses(ir), NameSupply(ir)
        accesses = {id(a.stmt): a for a in table.all if a.is_store}

        def rule(stmt: Stmt) -> Block:
            if not isinstance(stmt, For):
                return (stmt,)
            rows = [row for row in stored_rows(table, accesses, stmt.body) if may_move(stmt.body, row)]
            rows = [r for r in rows if context.may_apply(self, f"{len(r)} stores to %{r[0].buffer} side by side")]
            return (replace(stmt, body=with_rows(stmt.body, rows, fresh)),) if rows else (stmt,)

        return ir.with_body(tile.expand_stmts(ir.body, rule))


def stored_rows(table: Accesses, accesses: Mapping[int, Access], body: Block) -> Iterator[list[Store]]:
    """Yield stores of a block that lie side by side for each lane, in that order; each store at most once."""
    stores = [s for s in body if isinstance(s, Store) and id(s) in accesses]
    while stores:
        a = accesses[id(stores[0])]
        lane = next((r for r in a.loops if r.lanes), None)
        row, step = [stores[0]], (lane and table.stride(a, lane.var)) or 0
        while len(row) < step and (s := next((s for s in stores if is_neighbour(table, row[0], s, -1)), None)):
            row.insert(0, s)
        while len(row) < step and (s := next((s for s in stores if is_neighbour(table, row[-1], s, 1)), None)):
            row.append(s)
        if lane is not None and is_interleaved(len(row), step, lane.lanes):
            yield row
        stores = [s for s in stores if all(s is not x for x in row)]


def is_neighbour(table: Accesses, s: Store, other: Store, distance: int) -> bool:
    """Return True if `other` stores what lies `distance` elements behind what `s` stores, in memory and along one dimension."""
    if (s.buffer, s.nontemporal) != (other.buffer, other.nontemporal):
        return False
    steps = [d - e for d, e in zip(other.index, s.index, strict=True) if d != e]
    offset = table.types[s.buffer].offset
    return steps == [distance] and offset(other.index) - offset(s.index) == distance


def may_move(body: Block, row: Sequence[Store]) -> bool:
    """Return True if stores of a block may all be made where the last of them is."""
    places = [k for k, s in enumerate(body) if any(s is x for x in row)]
    between = body[places[0] : places[-1] + 1]
    plain = [s for s in between if isinstance(s, (Let, Store))]
    if len(plain) < len(between) or any(e.buffer == row[0].buffer for s in plain for e in s.value.loads):
        return False
    loaded = {e.buffer for s in row for e in s.value.loads}
    others = [s for s in plain if isinstance(s, Store) and all(s is not x for x in row)]
    return not any(s.buffer in loaded or s.index in [x.index for x in row] for s in others)


def with_rows(body: Block, rows: Sequence[Sequence[Store]], fresh: NameSupply) -> Block:
    """Return a block that makes the stores of each row by one loop, where the last of them was."""
    row_of = {id(s): k for k, row in enumerate(rows) for s in row}
    last = {row_of[id(s)]: id(s) for s in body if id(s) in row_of}
    loops = {last[k]: row_loop(row, fresh("column")) for k, row in enumerate(rows)}
    return tuple(loops.get(id(s), s) for s in body if id(s) not in row_of or id(s) in loops)


def row_loop(row: Sequence[Store], column: str) -> For:
    """Return a loop over `column` that makes the stores of a row."""
    index = tuple(d if d == e else d + var(column) for d, e in zip(row[0].index, row[1].index, strict=True))
    value: Expr = row[-1].value
    for k in range(len(row) - 1, 0, -1):
        value = where(index_value(var(column) - k) < 0, row[k - 1].value, value)
    return For(Range(column, 0, len(row), tile=len(row)), (replace(row[0], index=index, value=value),))
