"""Loop fusion: one loop for two adjacent ones over the same range."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import TypeVar, Union

from compiler.errors import TransformError
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.dependence import conflicting_buffer
from compiler.ir.tile.kernel import Block, For, Let, Range, Reduce, Stmt, Store, stored_buffers
from compiler.ir.tile.substitution import NameSupply, bound_names, substitute_names

L = TypeVar("L", bound=Union[For, Reduce])


def fuse(first: For, second: L, fresh: NameSupply) -> L:
    """Fuse loop `first` with the loop or reduction `second` that follows it.

    for %i { A(%i) }  for %k { B(%k) }         ->  for %k { A(%k)  B(%k) }
    for %i { A(%i) }  %s = reduce add %k { B } ->  %s = reduce add %k { A(%k)  B }

    TransformError if only one is parallel, the ranges differ, an iteration of the second touches what another iteration
    of the first stores, or conversely; or if the first stores elsewhere than in local buffers, and the second reduces.
    """
    ranges, is_parallel = tile.stmt_ranges(second), tile.is_parallel_loop(second)
    if len(ranges) != 1 or not has_same_range(first.range, ranges[0]):
        raise TransformError(f"the ranges of %{first.range.var} and %{ranges[0].var} differ")
    if first.parallel != is_parallel:
        raise TransformError(f"only one of the loops %{first.range.var} and %{ranges[0].var} is parallel")
    v, clashing = ranges[0].var, bound_names(first.body) & bound_names((second,))
    names = {**{name: fresh(name) for name in sorted(clashing)}, first.range.var: v}
    head: Block = tuple(substitute_names(s, names) for s in first.body)
    tail = second.body if isinstance(second, For) else (*second.body, Let("", second.value))
    if (buffer := conflicting_buffer(head, tail, v)) is not None:
        raise TransformError(f"iterations of %{v} depend on each other through %{buffer}")
    return replace(second, body=(*head, *second.body))


def require_local_stores(first: For, local_buffers: Set[str]) -> None:
    """Raise TransformError if a loop stores elsewhere than in `local_buffers`, because a reduction must not."""
    if outside := stored_buffers(first.body) - local_buffers:
        raise TransformError(f"a reduction must not store to %{min(outside)}")


def forward_store(body: Block, position: int, name: str) -> Block:
    """Bind the value of the store at `position` to `name`, and read it instead of the element in later statements.

    store f(%x), %e[%i]  store %e[%i] + 1, %y  ->  %name = f(%x)  store %name, %e[%i]  store %name + 1, %y

    TransformError if a later statement stores to the buffer too.
    """
    store, later = body[position], body[position + 1 :]
    assert isinstance(store, Store)
    if store.buffer in stored_buffers(later):
        raise TransformError(f"%{store.buffer} is stored to again")
    result = Ref(store.value.dtype, name)

    def rule(e: Expr) -> Expr:
        is_stored = isinstance(e, Load) and (e.buffer, e.index, e.mask) == (store.buffer, store.index, None)
        return result if is_stored else e

    forwarded = tile.map_exprs(later, lambda e: scalar.transform(e, rule))
    return (*body[:position], Let(name, store.value), replace(store, value=result), *forwarded)


def fuse_adjacent(body: Block, attempt: Callable[[Stmt, Stmt], Stmt | None], refused: Callable[[str], object]) -> Block:
    """Replace neighbours in a block by what `attempt` makes of them; None keeps both.

    `refused` takes the reasons of the TransformErrors that `attempt` raises.
    """
    out: list[Stmt] = []
    for stmt in body:
        fused = None
        try:
            fused = attempt(out[-1], stmt) if out else None
        except TransformError as refusal:
            refused(str(refusal))
        if fused is None:
            out.append(stmt)
        else:
            out[-1] = fused
    return tuple(out)


def has_same_range(a: Range, b: Range) -> bool:
    """Return True if two loops have the same bounds, tile and lanes."""
    return (a.lo, a.hi, a.tile, a.lanes) == (b.lo, b.hi, b.tile, b.lanes)
