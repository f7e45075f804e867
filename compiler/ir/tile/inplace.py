"""Aliasable pairs of a kernel: inputs and outputs that may share memory, derived from the loads and stores of its Tile IR.

An input and an output may alias if every element of the input is read only in the block that stores the same element of
the output, not after that store, and no element is stored twice:

    for %i in 0..64 { store exp(%x[%i]), %y[%i] }        %y may be written over %x
    for %i in 0..64 { store %x[63 - %i], %y[%i] }        it may not
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.affine import stride
from compiler.ir.symbolic.bounds import bounds_of_expr
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval, size_hint, substitute, var, variables
from compiler.ir.tile.dependence import IndexBounds, are_disjoint_bounds
from compiler.ir.tile.kernel import (
    Block,
    Kernel,
    Let,
    Range,
    Stmt,
    Store,
    copied_buffers,
    loads,
    stmt_body,
    stmt_exprs,
    stmt_ranges,
    walk,
)
from compiler.ir.types import TensorType


def aliasable_pairs(kernel: Kernel) -> frozenset[tuple[str, str]]:
    """Return every pair (input, output) of parameters that may be the same memory (as XLA's input-output aliasing).

    Buffers of asynchronous copies have memory of their own.
    """
    pairs = set[tuple[str, str]]()
    copied = copied_buffers(kernel.body)
    params = [p for p in kernel.params if p.name not in copied]
    for out in (p for p in params if p.role == "out"):
        sources = [p.name for p in params if p.role == "in" and _has_same_storage(p.type, out.type)]
        if not sources:
            continue
        sites = tuple(_store_sites(kernel.body, out.name, ()))
        if not _stores_once(sites, out.type) or any(e.buffer == out.name for e in loads(kernel.body)):
            continue
        pairs |= {(source, out.name) for source in sources if _reads_only_at_stores(kernel, source, sites)}
    return frozenset(pairs)


@dataclass(frozen=True)
class _StoreSite:
    """Store of the output: its block, its position in it, and the enclosing loops."""

    block: Block
    position: int
    loops: tuple[Range, ...]

    @property
    def store(self) -> Store:
        stmt = self.block[self.position]
        assert isinstance(stmt, Store)
        return stmt

    @property
    def bounds(self) -> Bounds:
        """Bounds of the loop variables whose ranges depend on constants and sizes only."""
        return {r.var: (r.lo, r.hi - 1) for r in self.loops if not variables(r.lo) and not variables(r.hi)}

    @cached_property
    def index_bounds(self) -> tuple[IndexBounds, ...]:
        """Lowest and highest value of each index, or None if unknown."""
        return tuple(bounds_of_expr(d, self.bounds) for d in self.store.index)


def _has_same_storage(a: TensorType, b: TensorType) -> bool:
    return (a.nbytes, a.dtype.bytes) == (b.nbytes, b.dtype.bytes)


def _store_sites(block: Block, out: str, loops: tuple[Range, ...]) -> Iterator[_StoreSite]:
    for k, stmt in enumerate(block):
        if isinstance(stmt, Store) and stmt.buffer == out:
            yield _StoreSite(block, k, loops)
        yield from _store_sites(stmt_body(stmt), out, (*loops, *stmt_ranges(stmt)))


def _stores_once(sites: tuple[_StoreSite, ...], type: TensorType) -> bool:
    """Return True if no element is stored twice, by one store or by two."""
    sites = _with_parts_joined(sites)
    disjoint = all(_are_disjoint(a, b) for k, a in enumerate(sites) for b in sites[:k])
    return bool(sites) and disjoint and all(_is_injective(s, type) for s in sites)


def _with_parts_joined(sites: tuple[_StoreSite, ...]) -> tuple[_StoreSite, ...]:
    """Return the sites with one in place of two whose innermost loop goes on where that of the other ends."""
    joined: list[_StoreSite] = []
    for site in sites:
        last = joined[-1] if joined else site
        if last is not site and last.loops and site.loops and last.store.index == site.store.index:
            (*outer, first), (*others, second) = last.loops, site.loops
            if outer == others and first.var == second.var and first.hi == second.lo:
                joined[-1] = replace(last, loops=(*outer, first.with_(hi=second.hi)))
                continue
        joined.append(site)
    return tuple(joined)


def _is_injective(site: _StoreSite, type: TensorType) -> bool:
    """Return True if different iterations store different elements: each stride exceeds the span of the smaller ones."""
    flat = TensorType(type.dtype, type.shape).offset(site.store.index)
    for r in reversed(site.loops):  # count each loop from 0, also if its lower bound depends on an outer loop
        flat = substitute(flat, {r.var: r.lo + var(r.var)}) if variables(r.lo) else flat
    if variables(flat) - {r.var for r in site.loops}:
        return False
    strides: list[tuple[Dim, Dim]] = []
    for r in site.loops:
        step, extent = stride(flat, r.var), r.extent
        if step is None or variables(extent):
            return False
        if not isinstance(extent, int) or extent > 1:
            strides.append((abs(step) if isinstance(step, int) else step, extent))
    span: Dim = 0
    for step, extent in sorted(strides, key=lambda s: (size_hint(s[0]), size_hint(s[1]))):
        gap = interval(step - span, {})
        if gap is None or gap[0] <= 0:
            return False
        span = span + step * (extent - 1)
    return True


def _are_disjoint(a: _StoreSite, b: _StoreSite) -> bool:
    """Return True if two stores touch different elements because the ranges of one index are disjoint."""
    return any(map(are_disjoint_bounds, a.index_bounds, b.index_bounds))


def _reads_only_at_stores(kernel: Kernel, source: str, sites: tuple[_StoreSite, ...]) -> bool:
    """Return True if every load of `source` is in the block of a store, reads its element's memory, and is not used after it."""
    matched, types = 0, {p.name: p.type for p in kernel.params}
    for site in sites:
        block_loads = [e for s in site.block for v in _own_exprs(s) for e in _loads_of(v, source)]
        stored, read = types[site.store.buffer].offset(site.store.index), types[source]
        if any(read.offset(e.index) != stored for e in block_loads) or _is_used_after(site, source):
            return False
        matched += len(block_loads)
    return matched == sum(1 for s in walk(kernel.body) for v in stmt_exprs(s) for _ in _loads_of(v, source))


def _own_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    return stmt_exprs(stmt) if isinstance(stmt, (Let, Store)) else ()


def _loads_of(value: Expr, buffer: str) -> Iterator[Load]:
    return (e for e in value.loads if e.buffer == buffer)


def _is_used_after(site: _StoreSite, source: str) -> bool:
    """Return True if a statement after the store depends on `source`, also through a Let, which codegen may delay."""
    tainted: set[str] = set()
    for k, stmt in enumerate(site.block):
        depends = _depends_on_source(stmt, source, tainted)
        if depends and isinstance(stmt, Let):
            tainted.add(stmt.name)
        elif depends and k > site.position:
            return True
    return False


def _depends_on_source(stmt: Stmt, source: str, tainted: set[str]) -> bool:
    def is_dependent(e: Expr) -> bool:
        if isinstance(e, Ref):
            return e.name in tainted
        return isinstance(e, Load) and (e.buffer == source or any(variables(d) & tainted for d in e.index))

    return any(is_dependent(e) for s in walk((stmt,)) for v in stmt_exprs(s) for e in v.subexprs)
