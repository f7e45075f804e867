"""Renaming inside Tile IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.ir import scalar, tile
from compiler.ir.index import Dim, substitute, var
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.tile import Check, For, Let, Local, Prefetch, Range, Reduce, Stmt, Store


def rename(stmt: Reduce, suffix: str) -> Reduce:
    """The statement with `suffix` on every name it binds, so that it can stand beside its twin."""
    bound = {stmt.name}
    for s in tile.walk(stmt.body):
        bound |= {r.var for r in tile.ranges(s)}
        bound |= {s.name} if isinstance(s, (Let, Reduce)) else {s.buffer} if isinstance(s, Local) else set()
    bound |= {r.var for r in stmt.ranges}
    return substitute_names(stmt, {n: n + suffix for n in bound})


def substitute_names(stmt: Reduce, names: Mapping[str, str]) -> Reduce:
    """The statement with every use and binding of a name in `names` replaced."""
    moved: dict[str, Dim] = {n: var(m) for n, m in names.items()}

    def dim(d: Dim) -> Dim:
        return substitute(d, moved)

    def expr(e: Expr) -> Expr:
        def rule(x: Expr) -> Expr:
            if isinstance(x, Ref):
                return Ref(x.dtype, names.get(x.name, x.name))
            if isinstance(x, Load):
                return Load(x.dtype, names.get(x.buffer, x.buffer), tuple(dim(d) for d in x.index), x.mask, x.other)
            if isinstance(x, scalar.IndexValue):
                return scalar.index_value(dim(x.index))
            return x

        return scalar.transform(e, rule)

    def span(r: Range) -> Range:
        return r.with_(var=names.get(r.var, r.var), lo=dim(r.lo), hi=dim(r.hi))

    def one(s: Stmt) -> Stmt:
        if isinstance(s, Let):
            return Let(names.get(s.name, s.name), expr(s.value))
        if isinstance(s, Store):
            return replace(s, buffer=names.get(s.buffer, s.buffer), index=tuple(dim(d) for d in s.index), value=expr(s.value))
        if isinstance(s, Local):
            return replace(s, buffer=names.get(s.buffer, s.buffer))
        if isinstance(s, Prefetch):
            return Prefetch(names.get(s.buffer, s.buffer), tuple(dim(d) for d in s.index))
        if isinstance(s, Check):
            return Check(names.get(s.name, s.name), dim(s.low), dim(s.high))
        if isinstance(s, For):
            return replace(s, range=span(s.range), body=tuple(one(x) for x in s.body))
        return Reduce(names.get(s.name, s.name), s.op, tuple(span(r) for r in s.ranges), tuple(one(x) for x in s.body), expr(s.value))

    result = one(stmt)
    assert isinstance(result, Reduce)
    return result
