"""Loop fusion: join a loop and the next one over the same range, which reads its result."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import partial

from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Reduce, Stmt, Store, loaded_buffers
from compiler.ir.tile.substitution import NameSupply
from compiler.passes.base import Context, TilePass, register
from compiler.transforms.fuse import forward_store, fuse, fuse_adjacent, require_local_stores


@register
@dataclass(frozen=True)
class FuseLoops(TilePass):
    """Fuse adjacent serial loops over the same range.

    for %k { store f(%k), %e[%k] }  %s = reduce add %r { yield %e[%r] }
    ->  %s = reduce add %r { %t = f(%r)  store %t, %e[%r]  yield %t }

    Applies if the second loop reads the first one's last store at its own index only, so that no step needs a later one.
    """

    name = "fuse-loops"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        fresh = NameSupply(ir)
        local_buffers = {s.buffer for s in tile.walk(ir.body) if isinstance(s, Local)}

        def attempt(first: Stmt, second: Stmt) -> Stmt | None:
            fused = fuse_pair(first, second, local_buffers, fresh)
            return fused if fused is not None and context.may_apply(self, "fused two loops") else None

        def block(body: Block) -> Block:
            inner = tuple(replace(s, body=block(s.body)) if isinstance(s, (For, Reduce)) else s for s in body)
            return fuse_adjacent(inner, attempt, partial(context.missed, self))

        return ir.with_body(block(ir.body))


def fuse_pair(first: Stmt, second: Stmt, local_buffers: Set[str], fresh: NameSupply) -> Stmt | None:
    """Fuse loop `first` that ends with a store at its own index with a serial loop `second`; None if they are others."""
    if not isinstance(first, For) or first.parallel or not isinstance(second, (For, Reduce)):
        return None
    store = first.body[-1] if first.body else None
    if not isinstance(store, Store) or store.index != (var(first.range.var),) or len(tile.stmt_ranges(second)) != 1:
        return None
    if isinstance(second, Reduce):
        require_local_stores(first, local_buffers)
    if store.buffer in loaded_buffers(first.body):
        return None  # a recurrence would keep the second loop from having lanes
    fused = fuse(first, second, fresh)
    name = fresh(f"{store.buffer}.{tile.stmt_ranges(fused)[0].var}")
    if isinstance(fused, For):
        return replace(fused, body=forward_store(fused.body, len(first.body) - 1, name))
    *body, result = forward_store((*fused.body, Let("", fused.value)), len(first.body) - 1, name)
    assert isinstance(result, Let)
    return replace(fused, body=tuple(body), value=result.value)
