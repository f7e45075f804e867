"""Two-level reduction of groups of columns: rows first, so that memory is read row by row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

from compiler.analysis.accesses import Accesses
from compiler.errors import TransformError
from compiler.ir.scalar import Load, Ref
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import (
    Block,
    For,
    Kernel,
    Local,
    Range,
    Reduce,
    Stmt,
    Store,
    dim_hint,
    extent_hint,
    is_parallel_loop,
    iteration_count_hint,
)
from compiler.ir.tile.loop_nest import perfect_nest
from compiler.ir.tile.substitution import NameSupply, substitute_indices, with_unique_names
from compiler.ir.types import TensorType
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.transforms.collapse import collapse
from compiler.transforms.distribute import distribute_at
from compiler.transforms.split import split_index


@register
@dataclass(frozen=True)
class ReduceColumns(TilePass):
    """Reduce the rows of each column first, then the columns of each group.

    parallel %g in 0..32 { %s = reduce add %k in 0..11, %r in 0..900 { yield %x[%r, %g*11 + %k] }  store %s, %y[%g] }
    ->  local %t: f32[352]
        parallel %c in 0..352 { %u = reduce add %r in 0..900 { yield %x[%r, %c] }  store %u, %t[%c] }
        parallel %g in 0..32 { %s = reduce add %k in 0..11 { yield %t[%g*11 + %k] }  store %s, %y[%g] }

    Lanes along the columns of one group would be few, and read a small part of each row.  Applies where groups lie side by side
    and their rows fill the first-level cache.  Groups are divided into a block for each thread where no loop around has as many steps.
    """

    name = "reduce-columns"
    min_bytes: int = from_machine("l1")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir = with_unique_names(ir)
        fresh, table = NameSupply(ir), context.accesses(ir)

        def rule(stmt: Stmt) -> Block:
            if not is_parallel_loop(stmt) or not isinstance(stmt.range.extent, int) or stmt.range.lo != 0:
                return (stmt,)
            found = ((s, columns_of_group(table, stmt.range, s)) for s in stmt.body if isinstance(s, Reduce))
            columns = {s.name: r for s, r in found if r is not None}
            if not columns or rows_bytes(table, stmt, columns) < self.min_bytes:
                return (stmt,)
            around = prod(extent_hint(r) for r in table.loops[stmt.range.var][2])
            blocks = 1 if around >= context.machine.threads else gcd(stmt.range.extent, context.machine.threads)
            try:
                distributed = in_blocks(stmt, blocks, lambda loop: reduced_by_column(loop, columns, fresh), fresh)
            except TransformError:
                return (stmt,)
            names = ", ".join(f"%{name}" for name in columns)
            return distributed if context.may_apply(self, f"rows of {names} reduced before columns") else (stmt,)

        return with_unique_names(ir.with_body(tile.expand_stmts(ir.body, rule)))


def columns_of_group(table: Accesses, groups: Range, s: Reduce) -> Range | None:
    """Return the range of `s` along which groups lie side by side, in rows that its other ranges walk over; None if there is none."""
    reads, columns = table.loads_of(s), next((r for r in s.ranges if is_along(table, s, r)), None)
    if columns is None or columns.lo != 0 or not isinstance(columns.extent, int) or len(s.ranges) < 2:
        return None
    row = columns.extent * dim_hint(groups.extent)
    others = [r for r in s.ranges if r is not columns]
    side_by_side = all(table.stride(a, groups.var) == columns.extent for a in reads)
    walk_rows = all(abs(table.stride(a, r.var) or 0) >= row for a in reads for r in others)
    return columns if side_by_side and walk_rows else None


def is_along(table: Accesses, s: Reduce, r: Range) -> bool:
    """Return True if reduction `s` has loads, which are all contiguous along its range `r`."""
    reads = table.loads_of(s)
    return bool(reads) and all(table.stride(a, r.var) == 1 for a in reads)


def rows_bytes(table: Accesses, groups: For, sums: Collection[str]) -> int:
    """Return the bytes of the most that one of the reductions called `sums` reads in all groups."""
    reads = [a for s in groups.body if isinstance(s, Reduce) and s.name in sums for a in table.loads_of(s)]
    inside = ((a, a.loops[a.loops.index(groups.range) :]) for a in reads)
    return max(iteration_count_hint(loops) * table.types[a.buffer].dtype.bytes for a, loops in inside)


def reduced_by_column(groups: For, columns: Mapping[str, Range], fresh: NameSupply) -> Block:
    """Return the loops over columns and groups for a loop over groups, in which `columns` are the ranges of reductions."""
    body: list[Stmt] = []
    buffers: list[Stmt] = []
    starts: list[int] = []
    for s in groups.body:
        if not isinstance(s, Reduce) or s.name not in columns:
            body.append(s)
            continue
        r, dtype = columns[s.name], s.value.dtype
        load = Load(dtype, fresh(f"{s.name}.columns"), (var(groups.range.var) * r.extent + var(r.var),))
        column = replace(s, name=fresh(f"{s.name}.column"), ranges=tuple(o for o in s.ranges if o.var != r.var))
        buffers.append(Local(load.buffer, TensorType(dtype, (r.extent * groups.range.extent,))))
        starts += [len(body), len(body) + 1]
        body.append(For(r, (column, Store(load.buffer, load.index, Ref(dtype, column.name))), parallel=True))
        body.append(replace(s, ranges=(r,), body=(), value=load))
    loops = distribute_at(replace(groups, body=tuple(body)), starts, fresh)
    return (*buffers, *(collapsed(s, {r.var for r in columns.values()}) for s in loops))


def collapsed(stmt: Stmt, columns: Collection[str]) -> Stmt:
    """Collapse a loop over groups with the loop over one of `columns` that ends it; return other statements unchanged."""
    if not isinstance(stmt, For) or not isinstance(inner := stmt.body[-1], For) or inner.range.var not in columns:
        return stmt
    loop, index = collapse(stmt, inner)
    return replace(loop, body=tuple(substitute_indices(s, index) for s in (*stmt.body[:-1], *inner.body)))


def in_blocks(loop: For, count: int, rule: Callable[[For], Block], fresh: NameSupply) -> Block:
    """Return `rule(loop)` for each of `count` equal blocks of a loop, whose blocks are parallel."""
    if count == 1:
        return rule(loop)
    inner = fresh(f"{loop.range.var}.group")
    blocks, groups = perfect_nest(split_index((loop,), loop.range.var, dim_hint(loop.range.extent) // count, inner))[:2]
    return (replace(blocks, body=rule(groups)),)
