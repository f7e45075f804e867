"""Join neighbouring loops over the same indices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import scalar, tile
from compiler.ir.index import var
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.tile import Block, For, Kernel, Range, Reduce, Stmt, Store
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import substitute_names


@register
@dataclass(frozen=True)
class Merge(TilePass):
    """for %k { store f(%k), %e[%k] }  %s = reduce add %r { yield %e[%r] }
    ->  %s = reduce add %r { %t = f(%r)  store %t, %e[%r]  yield %t }

    Only where the second loop reads what the first one stores at its own index alone, so that no step needs a later one.
    """

    name = "merge"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        def block(body: Block) -> Block:
            out: list[Stmt] = []
            for stmt in body:
                if isinstance(stmt, (For, Reduce)):
                    stmt = replace(stmt, body=block(stmt.body))
                joined = join(out[-1], stmt) if out else None
                if joined is not None:
                    out[-1] = joined
                    context.applied(self, "two loops over the same indices became one")
                else:
                    out.append(stmt)
            return tuple(out)

        return ir.with_body(block(ir.body))


def join(first: Stmt, second: Stmt) -> Stmt | None:
    """One loop that does what `first` then `second` do; None where that is not so."""
    if not isinstance(first, For) or first.parallel or not isinstance(second, (For, Reduce)):
        return None
    if isinstance(second, For) and second.parallel:
        return None
    rs = tile.ranges(second)
    if len(rs) != 1 or not same(first.range, rs[0]):
        return None
    stores = [s for s in first.body if isinstance(s, Store)]
    if len(stores) != 1 or not isinstance(first.body[-1], Store) or stores[0].index != (var(first.range.var),):
        return None
    store = stores[0]
    v = rs[0].var
    moved = substitute_names(Reduce("", "add", (), first.body[:-1], store.value), {first.range.var: v})
    head, value = moved.body, moved.value
    name = f"{store.buffer}.{v}"
    result = Ref(value.dtype, name)

    def forward(e: Expr) -> Expr:
        def rule(x: Expr) -> Expr:
            if isinstance(x, Load) and x.buffer == store.buffer and x.index == (var(v),) and x.mask is None:
                return result
            return x

        return scalar.transform(e, rule)

    body = (*head, tile.Let(name, value), Store(store.buffer, (var(v),), result, store.stream), *tile.map_exprs(second.body, forward))
    if any(a.buffer == store.buffer for a in tile.loads(body)):
        return None
    if isinstance(second, For):
        return replace(second, body=body)
    final = forward(second.value)
    if any(isinstance(x, Load) and x.buffer == store.buffer for x in scalar.walk(final)):
        return None
    return replace(second, body=body, value=final)


def same(a: Range, b: Range) -> bool:
    """Whether two loops run over the same indices in the same way."""
    return (a.lo, a.hi, a.tile, a.lanes) == (b.lo, b.hi, b.tile, b.lanes)
