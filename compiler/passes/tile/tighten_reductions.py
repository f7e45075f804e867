"""Tighten the ranges of guarded reductions to the points where the guard holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

from compiler.analysis.index_sets import tighten_ranges
from compiler.ir import scalar
from compiler.ir.graph.structure import IDENTITIES, Guard
from compiler.ir.scalar import Const, Expr, IndexValue, Load, PrimitiveCall, Ref, const
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes, interval, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Let, Range, Reduce, Stmt
from compiler.ir.tile.substitution import with_unique_names
from compiler.ir.tile.uses import names_read
from compiler.ir.types import boolean
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class TightenReductions(TilePass):
    """Replace the guard of a reduction by tighter ranges.

    %s = reduce add %t in 0..2 { %in = index(1 - %t*2) < 0  yield where(%in, load(%x[%i + %t], %in) * load(%w[3 - %t*2], %in), 0.0) }
    ->  %s = reduce add %t in 1..2 { yield %x[%i + %t] * %w[3 - %t*2] }

    Comparisons that depend on one static range only become its bounds, the others stay.  Transposed convolutions need it: each
    remainder has its own taps.
    """

    name = "tighten-reductions"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if not any(e.mask is not None for e in tile.loads(ir.body)):
            return ir
        ir = with_unique_names(ir)
        guards = {s.name: s.value for s in tile.walk(ir.body) if isinstance(s, Let)}

        def rule(stmt: Stmt) -> Block:
            if isinstance(stmt, Reduce) and (new := tighten(stmt, guards)) is not stmt:
                return (new if context.may_apply(self, f"range of %{stmt.name} tightened to its guard") else stmt,)
            return (stmt,)

        body = tile.expand_stmts(ir.body, rule)
        read = {name for s in tile.walk(body) for value in tile.stmt_exprs(s) for name in names_read(value)}
        unused_guards = {name for name, value in guards.items() if value.dtype == boolean} - read
        return ir.with_body(
            tile.expand_stmts(body, lambda s: () if isinstance(s, Let) and s.name in unused_guards else (s,))
        )


def tighten(stmt: Reduce, guards: Mapping[str, Expr]) -> Stmt:
    """Restrict a reduction to the points where the conditions of its guard hold that bound one of its ranges; others stay."""
    value = stmt.value
    guard = value.args[0] if isinstance(value, PrimitiveCall) and value.primitive == "where" else None
    identity = const(IDENTITIES[stmt.op](value.dtype), value.dtype)
    if not isinstance(guard, Ref) or guard.name not in guards or not value.args[2].is_structurally_equal(identity):
        return stmt
    ranges, kept, parts = stmt.ranges, list[Expr](), list(conditions(guards[guard.name]))
    for condition, d in parts:
        restricted = restrict_ranges(ranges, d) if d is not None else None
        if restricted is None:
            kept.append(condition)
        else:
            ranges = restricted
    if any(r.lo == r.hi for r in ranges):
        return Let(stmt.name, identity)
    if not kept:
        return replace(stmt, ranges=ranges, value=scalar.transform(value.args[1], lambda e: drop_mask(e, guard.name)))
    if len(kept) == len(parts):
        return stmt
    rest = Let(guard.name, reduce(and_, kept))
    body = tuple(rest if isinstance(s, Let) and s.name == guard.name else s for s in stmt.body)
    return replace(stmt, ranges=ranges, body=body)


def drop_mask(e: Expr, guard: str) -> Expr:
    """Remove `guard` from the mask of a load."""
    if not isinstance(e, Load) or e.mask is None:
        return e
    conditions = e.mask.args if isinstance(e.mask, PrimitiveCall) and e.mask.primitive == "and" else (e.mask,)
    others = [m for m in conditions if not (isinstance(m, Ref) and m.name == guard)]
    if len(others) == len(conditions):
        return e
    return replace(e, mask=others[0] if others else None, other=e.other if others else None)


def conditions(guard: Expr) -> Iterator[tuple[Expr, Dim | None]]:
    """Yield each condition of `guard` with the index that must be >= 0, None for other conditions."""
    if isinstance(guard, PrimitiveCall) and guard.primitive == "and":
        for part in guard.args:
            yield from conditions(part)
        return
    at = guard.args[0] if isinstance(guard, PrimitiveCall) and guard.primitive in ("ge", "lt") else None
    d = at.index if isinstance(at, IndexValue) else at.value if isinstance(at, Const) else None
    plain = isinstance(guard, PrimitiveCall) and isinstance(guard.args[1], Const) and guard.args[1].value == 0
    if not plain or not isinstance(d, (int, IndexExpr)):
        yield guard, None
    elif isinstance(guard, PrimitiveCall):
        yield guard, d if guard.primitive == "ge" else -d - 1


def restrict_ranges(ranges: tuple[Range, ...], d: Dim) -> tuple[Range, ...] | None:
    """Restrict the ranges to `d` >= 0; None if `d` depends on several of them, an outer loop or a dynamic size."""
    if isinstance(d, int):
        return ranges if d >= 0 else tuple(r.with_(hi=r.lo) for r in ranges)
    r = next((r for r in ranges if variables(d) == {r.var}), None)
    if r is None or not isinstance(r.lo, int) or not isinstance(r.hi, int) or not coefficient(d, r.var):
        return None
    limits = interval(d, {r.var: (r.lo, r.hi - 1)})
    return tuple(tighten_ranges(ranges, [Guard(d, 0, limits[1] + 1)], {})) if limits and not dynamic_sizes(d) else None
