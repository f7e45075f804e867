"""Local rows in results: a buffer that results are computed from element by element lies where they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from compiler.ir.scalar import Expr, Load, transform
from compiler.ir.symbolic.index_expr import Dim, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.inplace import aliasable_pairs
from compiler.ir.tile.kernel import Block, For, Kernel, Local, Param, Stmt, Store, walk
from compiler.ir.tile.substitution import bound_names
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.passes.base import Context, TilePass, register

Row: TypeAlias = "tuple[Dim | None, ...]"
"""Indices of a part of a buffer, None for the dimensions that it has all of."""


@register
@dataclass(frozen=True)
class RowsInResults(TilePass):
    """Keep a row of intermediates in the row of a result that overwrites it, if it is larger than the first-level cache.

    for %i { local %t: f32[99999]  for %k { store exp(%x[%i, %k]), %t[%k] }         for %k { store %t[%k] * 2.0, %y[%i, %k] } }
    ->
    for %i {                       for %k { store exp(%x[%i, %k]), %y[%i, %k] }     for %k { store %y[%i, %k] * 2.0, %y[%i, %k] } }

    The caches then hold one row less.  A row of any size that is a result itself is not copied there.  Results that are
    stored past the caches keep the row that they are computed from.
    """

    name = "rows-in-results"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        for loop, local in local_rows(ir.body):
            is_long = tile.dim_hint(local.type.nbytes) > context.machine.l1
            for out in (p for p in ir.params if p.role == "out" and p.type.dtype == local.type.dtype):
                if (new := with_row_in_result(ir, loop, local, out)) is None:
                    continue
                body = without_idle_stores(new.body, out.name)
                pays = is_long or body is not new.body
                if pays and context.may_apply(self, f"%{local.buffer} is computed in %{out.name}"):
                    ir = new.with_body(body)
                    break
        return ir


def local_rows(body: Block) -> Iterator[tuple[For, Local]]:
    """Yield the local buffers outside of tiles, each with the loop it is declared in."""
    for loop in (s for s in body if isinstance(s, For) and s.range.tile == 1 and not s.range.lanes):
        yield from ((loop, s) for s in loop.body if isinstance(s, Local) and s.type.rank)
        yield from local_rows(loop.body)


def with_row_in_result(ir: Kernel, loop: For, local: Local, out: Param) -> Kernel | None:
    """Return `ir` with a part of `out` in place of `local`, which `loop` declares, or None if that would change its results."""
    first = next((k for k, s in enumerate(loop.body) if out.name in tile.stored_buffers((s,))), None)
    if first is None or out.name in tile.loaded_buffers(ir.body) or is_streamed(ir, out.name):
        return None
    row, last = row_of_result(loop.body, out.name), loop.body[first:]
    whole = tuple(extent for extent, d in zip(out.type.shape, row, strict=True) if d is None)
    if whole != local.type.shape or local.buffer in tile.stored_buffers(last):
        return None
    old = f"{local.buffer}.row"
    last_reads = replace(loop, body=with_renamed_row(last, local.buffer, old, row))
    overwriting = replace(ir.with_statement(loop, last_reads), params=(*ir.params, Param(old, out.type)))
    if (old, out.name) not in aliasable_pairs(overwriting):
        return None
    rest = tuple(s for s in loop.body if s is not local)
    new = ir.with_statement(loop, replace(loop, body=with_renamed_row(rest, local.buffer, out.name, row)))
    return new if is_parallelizable(new) or not is_parallelizable(ir) else None


def is_streamed(ir: Kernel, buffer: str) -> bool:
    """Return True if some elements of `buffer` are stored past the caches."""
    return any(isinstance(s, Store) and s.buffer == buffer and s.nontemporal is not None for s in walk(ir.body))


def without_idle_stores(body: Block, buffer: str) -> Block:
    """Return `body` without stores that leave an element of `buffer` as it is, and loops around nothing else."""

    def is_idle(s: Stmt) -> bool:
        if not isinstance(s, Store) or not isinstance(s.value, Load) or s.buffer != buffer:
            return False
        return (s.value.buffer, s.value.index, s.value.mask) == (buffer, s.index, None)

    def kept(s: Stmt) -> Block:
        return () if is_idle(s) or (isinstance(s, For) and not s.body) else (s,)

    return tile.expand_stmts(body, kept)


def row_of_result(body: Block, out: str) -> Row:
    """Return the indices of the first store to `out`, None for those that vary inside `body`."""
    names = bound_names(body) | {r.var for s in walk(body) for r in tile.stmt_ranges(s)}
    index = tile.access_indices(body, out)[0]
    return tuple(None if variables(d) & names else d for d in index)


def with_renamed_row(body: Block, local: str, buffer: str, row: Row) -> Block:
    """Return `body` with elements of `buffer` in place of those of `local`, which are indexed by the varying dimensions of `row`."""

    def index(of_local: tuple[Dim, ...]) -> tuple[Dim, ...]:
        varying = iter(of_local)
        return tuple(next(varying) if d is None else d for d in row)

    def load(e: Expr) -> Expr:
        return replace(e, buffer=buffer, index=index(e.index)) if isinstance(e, Load) and e.buffer == local else e

    def store(s: Stmt) -> Block:
        is_local = isinstance(s, Store) and s.buffer == local
        return (replace(s, buffer=buffer, index=index(s.index)) if isinstance(s, Store) and is_local else s,)

    return tile.expand_stmts(tile.map_exprs(body, lambda e: transform(e, load)), store)
