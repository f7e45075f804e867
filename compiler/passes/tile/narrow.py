"""Shorten reductions to the points that take part in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from compiler.ir import scalar, tile
from compiler.ir.index import Dim, Index, var, variables
from compiler.ir.linear import coefficient
from compiler.ir.scalar import Call, Const, Expr, IndexValue, Load, Ref, const
from compiler.ir.structure import IDENTITIES
from compiler.ir.tile import Block, Kernel, Let, Range, Reduce, Stmt
from compiler.ir.types import boolean
from compiler.passes.base import Context, TilePass, register
from compiler.passes.nest import names_in
from compiler.passes.rename import with_unique_names


@register
@dataclass(frozen=True)
class Narrow(TilePass):
    """%s = reduce add %t in 0..2 { %in = index(1 - %t*2) < 0  yield where(%in, load(%x[%i + %t], %in) * load(%w[3 - %t*2], %in), 0.0) }
    ->  %s = reduce add %t in 1..2 { yield %x[%i + %t] * %w[3 - %t*2] }

    Where one range alone decides which products are added: each remainder of a transposed convolution has its own taps.
    """

    name = "narrow"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        if not any(e.mask is not None for e in tile.loads(ir.body)):
            return ir
        ir = with_unique_names(ir)
        tests = {s.name: s.value for s in tile.walk(ir.body) if isinstance(s, Let)}

        def rule(stmt: Stmt) -> Block:
            new = narrowed(stmt, tests) if isinstance(stmt, Reduce) else stmt
            if isinstance(stmt, Reduce) and new is not stmt:
                context.applied(self, f"%{stmt.name} adds only what takes part")
            return (new,)

        body = tile.expand_stmts(ir.body, rule)
        read = {name for s in tile.walk(body) for value in tile.values(s) for name in names_in(value)}
        idle = {name for name, value in tests.items() if value.dtype == boolean} - read
        return ir.with_body(tile.expand_stmts(body, lambda s: () if isinstance(s, Let) and s.name in idle else (s,)))


def narrowed(stmt: Reduce, tests: Mapping[str, Expr]) -> Stmt:
    """The reduction over those points alone whose test holds; itself where they are no box."""
    value = stmt.value
    test = value.args[0] if isinstance(value, Call) and value.primitive == "where" else None
    neutral = const(IDENTITIES[stmt.op](value.dtype), value.dtype)
    if not isinstance(test, Ref) or test.name not in tests or not value.args[2].same(neutral):
        return stmt
    ranges: tuple[Range, ...] | None = stmt.ranges
    for d in differences(tests[test.name]):
        ranges = within(ranges, d) if ranges is not None and d is not None else None
    if ranges is None:
        return stmt
    if any(r.lo == r.hi for r in ranges):
        return Let(stmt.name, neutral)
    return replace(stmt, ranges=ranges, value=scalar.transform(value.args[1], lambda e: without(e, test.name)))


def without(e: Expr, test: str) -> Expr:
    """A load for which `test` is known to hold."""
    if not isinstance(e, Load) or e.mask is None:
        return e
    both = e.mask.args if isinstance(e.mask, Call) and e.mask.primitive == "and" else (e.mask,)
    left = [m for m in both if not (isinstance(m, Ref) and m.name == test)]
    if len(left) == len(both):
        return e
    return replace(e, mask=left[0] if left else None, other=e.other if left else None)


def differences(test: Expr) -> Iterator[Dim | None]:
    """The indices that are not negative where `test` holds; None for what is no comparison of an index."""
    if isinstance(test, Call) and test.primitive == "and":
        for part in test.args:
            yield from differences(part)
        return
    at = test.args[0] if isinstance(test, Call) and test.primitive in ("ge", "lt") else None
    d = at.index if isinstance(at, IndexValue) else at.value if isinstance(at, Const) else None
    plain = isinstance(test, Call) and isinstance(test.args[1], Const) and test.args[1].value == 0
    if not plain or not isinstance(d, (int, Index)):
        yield None
    elif isinstance(test, Call):
        yield d if test.primitive == "ge" else -d - 1


def within(ranges: tuple[Range, ...], d: Dim) -> tuple[Range, ...] | None:
    """The part of the ranges where `d` is not negative; None where more than one of them, a loop around them, or a size decides."""
    if isinstance(d, int):
        return ranges if d >= 0 else tuple(r.with_(hi=r.lo) for r in ranges)
    r = next((r for r in ranges if variables(d) == {r.var}), None)
    step = coefficient(d, r.var) if r is not None else None
    if r is None or not step or not isinstance(r.lo, int) or not isinstance(r.hi, int):
        return None
    rest = d - var(r.var) * step
    if not isinstance(rest, int):
        return None
    if step > 0:
        cut = r.with_(lo=min(max(r.lo, -(rest // step)), r.hi))
    else:
        cut = r.with_(hi=max(min(r.hi, rest // -step + 1), r.lo))
    return tuple(cut if x is r else x for x in ranges)
