"""Renaming inside Tile IR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from typing import TypeVar

from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Dim, substitute, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, BoundsCheck, For, Kernel, Let, Local, Prefetch, Range, Reduce, Stmt, Store

S = TypeVar("S", bound=Stmt)


class NameSupply:
    """Gives out names that a kernel does not use."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.counts: Counter[str] = Counter()

    @cached_property
    def used(self) -> set[str]:
        """The names in use; many passes never ask for one."""
        return {p.name for p in self.kernel.params} | bound_names(self.kernel.body)

    def __call__(self, prefix: str) -> str:
        """`hint` itself if it is free, else with a number behind it."""
        name = prefix
        while name in self.used:
            self.counts[prefix] += 1
            name = f"{prefix}_{self.counts[prefix]}"
        self.used.add(name)
        return name


def unused_name(name: str, used: Collection[str]) -> str:
    """`name`, or with a number behind it that makes it new."""
    return next(n for n in chain([name], (f"{name}_{k}" for k in count(len(used)))) if n not in used)


def bound_names(body: Block) -> set[str]:
    """Every name that a statement in `body` binds."""
    return {name for s in tile.walk(body) for name in names_bound_by(s)}


def names_bound_by(s: Stmt) -> list[str]:
    """The names that `s` itself binds: for what follows, and for what is inside it."""
    return [*names_bound_after(s), *(r.var for r in tile.stmt_ranges(s))]


def names_bound_after(s: Stmt) -> list[str]:
    """The value or buffer that `s` gives to the statements behind it."""
    return [s.name] if isinstance(s, (Let, Reduce)) else [s.buffer] if isinstance(s, Local) else []


def with_fresh_names(stmt: S, supply: NameSupply) -> S:
    """The statement with new names for all it binds, so that it can stand beside its twin."""
    return substitute_names(stmt, {name: supply(name) for name in sorted(bound_names((stmt,)))})


def with_unique_names(kernel: Kernel) -> Kernel:
    """The kernel with no name bound twice, not even in different blocks; itself where that is so."""
    names = [name for s in tile.walk(kernel.body) for name in names_bound_by(s)]
    if len(set(names)) == len(names):
        return kernel
    fresh, seen = NameSupply(kernel), set[str]()

    def block(body: Block) -> Block:
        out: list[Stmt] = []
        pending = list(body)
        while pending:
            stmt = pending.pop(0)
            again = {name: fresh(name) for name in names_bound_by(stmt) if name in seen}
            after = {name: again[name] for name in names_bound_after(stmt) if name in again}
            stmt, pending = substitute_names(stmt, again), [substitute_names(s, after) for s in pending]
            seen.update(names_bound_by(stmt))
            if isinstance(stmt, For):
                stmt = replace(stmt, body=block(stmt.body))
            elif isinstance(stmt, Reduce):
                *inner, last = block((*stmt.body, Store("", (), stmt.value)))  # the value sees the names of the body
                assert isinstance(last, Store)
                stmt = replace(stmt, body=tuple(inner), value=last.value)
            out.append(stmt)
        return tuple(out)

    return kernel.with_body(block(kernel.body))


def substitute_names(stmt: S, names: Mapping[str, str]) -> S:
    """The statement with every use and binding of a name in `names` replaced."""
    moved: dict[str, Dim] = {n: var(m) for n, m in names.items()}
    return _rewrite(stmt, names, lambda d: substitute(d, moved))


def substitute_indices(stmt: S, values: Mapping[str, Dim]) -> S:
    """The statement with loop variables from outside it replaced by index expressions."""
    return _rewrite(stmt, {}, lambda d: substitute(d, values))


def map_indices(stmt: S, rule: Callable[[Dim], Dim]) -> S:
    """The statement with every index expression replaced by `rule(expression)`."""
    return _rewrite(stmt, {}, rule)


def _rewrite(stmt: S, names: Mapping[str, str], dim: Callable[[Dim], Dim]) -> S:

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
            index, stream = tuple(dim(d) for d in s.index), None if s.nontemporal is None else dim(s.nontemporal)
            return Store(names.get(s.buffer, s.buffer), index, expr(s.value), stream)
        if isinstance(s, Local):
            return replace(
                s, buffer=names.get(s.buffer, s.buffer), type=replace(s.type, shape=tuple(map(dim, s.type.shape)))
            )
        if isinstance(s, Prefetch):
            return replace(s, buffer=names.get(s.buffer, s.buffer), index=tuple(dim(d) for d in s.index))
        if isinstance(s, BoundsCheck):
            return BoundsCheck(names.get(s.name, s.name), dim(s.low), dim(s.high))
        if isinstance(s, For):
            return replace(s, range=span(s.range), body=tuple(one(x) for x in s.body))
        return Reduce(
            names.get(s.name, s.name),
            s.op,
            tuple(span(r) for r in s.ranges),
            tuple(one(x) for x in s.body),
            expr(s.value),
        )

    return one(stmt)  # type: ignore[return-value]  # `one` keeps the kind of statement
