"""Memory dependences: which accesses may touch the same element, in one iteration of a loop or in two.

One subscript at a time decides (Goff, Kennedy and Tseng, "Practical Dependence Testing", 1991):

    store e, %x[%i]        ... %x[%i + 8] ...     for %i in 0..8: no conflict, the bounds of the index are disjoint
    store e, %x[4*%i + %j] ... %x[4*%i] ...       for %j in 0..4: no dependence between iterations of %i
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import TypeAlias

from compiler.ir.symbolic.affine import stride
from compiler.ir.symbolic.bounds import bounds_of_expr, is_provably_less
from compiler.ir.symbolic.index_atoms import Mod, terms
from compiler.ir.symbolic.index_expr import Bounds, Dim, dynamic_sizes, interval, substitute, var, variables
from compiler.ir.tile.kernel import AsyncCopy, Block, Range, Store, stmt_body, stmt_exprs, stmt_ranges, stored_buffers
from compiler.ir.tile.substitution import bound_names

Index: TypeAlias = tuple[Dim, ...]

IndexBounds: TypeAlias = tuple[Dim, Dim] | None
"""Lowest and highest value of an index, or None if unknown."""


ANYWHERE = var("anywhere")
"""Index without bounds, for each dimension of a box that is copied asynchronously."""


@dataclass(frozen=True, eq=False)
class MemoryAccess:
    """Load or store of a buffer; `bounds` are those of the loops between it and the block that was asked about."""

    buffer: str
    index: Index
    is_store: bool
    bounds: Bounds

    @cached_property
    def index_bounds(self) -> tuple[IndexBounds, ...]:
        """Lowest and highest value of each index."""
        return tuple(bounds_of_expr(d, self.bounds) for d in self.index)


def memory_accesses(body: Block, buffers: Collection[str], bounds: Bounds | None = None) -> Iterator[MemoryAccess]:
    """Yield the accesses of `body` to `buffers`, with the variables of enclosing loops within `bounds`."""
    for stmt in body:
        inner = with_loop_bounds(bounds or {}, stmt_ranges(stmt))
        for value in stmt_exprs(stmt):
            yield from (MemoryAccess(e.buffer, e.index, False, inner) for e in value.loads if e.buffer in buffers)
        if isinstance(stmt, Store) and stmt.buffer in buffers:
            yield MemoryAccess(stmt.buffer, stmt.index, True, inner)
        if isinstance(stmt, AsyncCopy):
            sides = zip(stmt.boxes, (False, True), strict=True)
            yield from (MemoryAccess(b[0], (ANYWHERE,) * len(b[1]), w, inner) for b, w in sides if b[0] in buffers)
        yield from memory_accesses(stmt_body(stmt), buffers, inner)


def with_loop_bounds(bounds: Bounds, ranges: Collection[Range]) -> Bounds:
    """Return `bounds` with those of the variables of nested loops."""
    inner = dict(bounds)
    for r in ranges:
        low, high = interval(r.lo, inner), interval(r.hi, inner)
        if dynamic_sizes(r.extent) and not variables(r.lo) and not variables(r.hi):
            inner[r.var] = r.lo, r.hi - 1
        elif low and high:
            inner[r.var] = low[0], high[1] - 1
    return inner


@lru_cache(maxsize=4096)
def are_disjoint_bounds(a: IndexBounds, b: IndexBounds) -> bool:
    """Return True if two ranges of an index provably have no value in common."""
    return a is not None and b is not None and (is_provably_less(a[1], b[0]) or is_provably_less(b[1], a[0]))


def may_conflict(a: MemoryAccess, b: MemoryAccess) -> bool:
    """Return True if the order of two accesses may matter: one stores, and no index has disjoint bounds."""
    if a.buffer != b.buffer or not (a.is_store or b.is_store):
        return False
    return not any(map(are_disjoint_bounds, a.index_bounds, b.index_bounds))


def conflicting_buffer(first: Block, second: Block, loop: str = "") -> str | None:
    """Return a buffer on which statements of two blocks conflict, or None.

    With a `loop` around both blocks, only conflicts between different iterations of it count.
    """
    stored = stored_buffers((*first, *second))
    later, inside = list(memory_accesses(second, stored)), bound_names((*first, *second)) if loop else set()
    for a in memory_accesses(first, stored):
        for b in (b for b in later if may_conflict(a, b)):
            bounds = {**a.bounds, **b.bounds}
            if not loop or not is_confined(a.index, b.index, loop, {n: bounds.get(n) for n in inside}):
                return a.buffer
    return None


def is_confined(a: Index, b: Index, v: str, inner: Mapping[str, IndexBounds]) -> bool:
    """Return True if accesses at `a` and `b` can touch one element only in the same iteration of loop `v`.

    `inner` gives the bounds of the values bound inside `v`, which differ between the accesses, and perhaps those of `v`; other variables are
    fixed.
    """
    subscripts = [*zip(a, b, strict=True), *_joined_subscripts(a, b)]
    return any(_pins_iteration(x, y, v, inner) or _is_stepped_over(x, y, v, inner) for x, y in subscripts)


def _joined_subscripts(a: Index, b: Index) -> Iterator[tuple[Dim, Dim]]:
    """Yield what quotients and remainders of neighbouring indices tell together: %i // 4 and %i % 4 are equal only if %i is."""
    inner: list[tuple[Dim, Dim]] = []  # the next index, and those joined from it on
    for quotient, other in reversed(list(zip(a, b, strict=True))):
        joined = [(quotient * n + x, other * n + y) for x, y in inner for n in _moduli(x)]
        yield from joined
        inner = [(quotient, other), *joined]


def _moduli(d: Dim) -> set[Dim]:
    """Return the divisors of the remainders that are summed in `d`."""
    return {atom.den for monomial, _ in terms(d) for atom in monomial if isinstance(atom, Mod)}


def _pins_iteration(x: Dim, y: Dim, v: str, inner: Mapping[str, IndexBounds]) -> bool:
    """Return True if `x` == `y` implies equal `v`: their stride along `v` exceeds what the inner loops add."""
    step, varying = stride(x, v), (variables(x) | variables(y)) & (inner.keys() - {v})
    if not step or step != stride(y, v):
        return False
    known = {n: b for n in varying if (b := inner[n]) is not None}
    if len(known) < len(varying):
        return False
    bounds = {**known, **{f"{n}'": b for n, b in known.items()}}
    primed: dict[str, Dim] = {n: var(f"{n}'") for n in known}
    rest = bounds_of_expr((x - var(v) * step) - substitute(y - var(v) * step, primed), bounds)
    size = step if is_provably_less(0, step) else -step
    return rest is not None and is_provably_less(-size, rest[0]) and is_provably_less(rest[1], size)


def _is_stepped_over(x: Dim, y: Dim, v: str, inner: Mapping[str, IndexBounds]) -> bool:
    """Return True if `x` == `y` implies equal `v` because steps of other loops exceed all that `v` reaches: %k*16 + %v, %v below 16."""
    varying = {v, *((variables(x) | variables(y)) & inner.keys())}
    steps = {n: stride(x, n) for n in varying}
    sizes = {n: abs(s) for n, s in steps.items() if isinstance(s, int) and s == stride(y, n)}
    zeros = dict.fromkeys(varying, 0)
    if len(sizes) < len(varying) or not sizes[v] or substitute(x, zeros) != substitute(y, zeros):
        return False
    near = [n for n in varying if sizes[n] <= sizes[v]]
    spans = {n: _span(inner.get(n), sizes[n]) for n in near}
    if any(s is None for s in spans.values()):
        return False
    smaller = sum(s or 0 for n, s in spans.items() if n != v)
    return smaller < sizes[v] and smaller + (spans[v] or 0) < gcd(*(sizes[n] for n in varying - {*near}))


def _span(bounds: IndexBounds, step: int) -> int | None:
    """Return how far an index between constant `bounds` reaches in steps of `step`; None for other bounds."""
    if bounds is None or not isinstance(bounds[0], int) or not isinstance(bounds[1], int):
        return None
    return (bounds[1] - bounds[0]) * step
