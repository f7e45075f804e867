"""Loop fusion: join a loop and the next one over the same range, which reads its result."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, For, Kernel, Let, Local, Range, Reduce, Stmt, Store
from compiler.ir.tile.substitution import NameSupply, bound_names, substitute_names
from compiler.passes.base import Context, TilePass, register


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

        def block(body: Block) -> Block:
            out: list[Stmt] = []
            for stmt in body:
                if isinstance(stmt, (For, Reduce)):
                    stmt = replace(stmt, body=block(stmt.body))
                fused = fuse_pair(out[-1], stmt, local_buffers, fresh) if out else None
                if fused is not None:
                    out[-1] = fused
                    context.applied(self, "fused two loops")
                else:
                    out.append(stmt)
            return tuple(out)

        return ir.with_body(block(ir.body))


def fuse_pair(first: Stmt, second: Stmt, local_buffers: Set[str], fresh: NameSupply) -> Stmt | None:
    """Fuse loops `first` and `second`, or return None if that is illegal; `local_buffers` are those of the kernel."""
    if not isinstance(first, For) or first.parallel or not isinstance(second, (For, Reduce)):
        return None
    if isinstance(second, For) and second.parallel:
        return None
    rs, store = tile.stmt_ranges(second), first.body[-1] if first.body else None
    if len(rs) != 1 or not has_same_range(first.range, rs[0]):
        return None
    if not isinstance(store, Store) or store.index != (var(first.range.var),):
        return None
    before, others, later = stored_buffers(first.body), stored_buffers(first.body[:-1]), stored_buffers((second,))
    if isinstance(second, Reduce) and not before <= local_buffers:
        return None  # a reduction stores to local buffers only
    if later & (before | loaded_buffers(first.body)) or others & (loaded_buffers((second,)) | {store.buffer}):
        return None
    v = rs[0].var
    renamed_vars = {name: fresh(name) for name in sorted(bound_names(first.body) & bound_names((second,)))}
    head, value = rename_in_block(first.body[:-1], store.value, {**renamed_vars, first.range.var: v})
    result = Ref(value.dtype, fresh(f"{store.buffer}.{v}"))

    def forward(e: Expr) -> Expr:
        def rule(x: Expr) -> Expr:
            is_result = isinstance(x, Load) and (x.buffer, x.index, x.mask) == (store.buffer, (var(v),), None)
            return result if is_result else x

        return scalar.transform(e, rule)

    producer_body = (*head, Let(result.name, value), Store(store.buffer, (var(v),), result, store.nontemporal))
    (consumer,) = tile.map_exprs((second,), forward)
    assert isinstance(consumer, (For, Reduce))
    fused = replace(consumer, body=(*producer_body, *consumer.body))
    return None if store.buffer in loaded_buffers((fused,)) else fused


def rename_in_block(body: Block, value: Expr, names: Mapping[str, str]) -> tuple[Block, Expr]:
    """Replace names in a block and in a value that uses its bindings."""
    renamed = substitute_names(Reduce("", "add", (), body, value), names)
    return renamed.body, renamed.value


def stored_buffers(body: Block) -> set[str]:
    """Return the buffers that `body` stores to."""
    return {s.buffer for s in tile.walk(body) if isinstance(s, Store)}


def loaded_buffers(body: Block) -> set[str]:
    """Return the buffers that `body` loads from."""
    return {e.buffer for e in tile.loads(body)}


def has_same_range(a: Range, b: Range) -> bool:
    """Return True if two loops have the same bounds, tile and lanes."""
    return (a.lo, a.hi, a.tile, a.lanes) == (b.lo, b.hi, b.tile, b.lanes)
