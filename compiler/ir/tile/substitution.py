"""Substitution of names and index expressions in Tile IR."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, count
from typing import TypeVar

from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Bounds, Dim, substitute, var
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, BoundsCheck, For, Kernel, Let, Local, Prefetch, Range, Reduce, Stmt, Store

S = TypeVar("S", bound=Stmt)


class NameSupply:
    """Source of names that a kernel does not use."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.counts: Counter[str] = Counter()

    @cached_property
    def used(self) -> set[str]:
        """Names in use, computed at the first request: many passes never make one."""
        return {p.name for p in self.kernel.params} | bound_names(self.kernel.body)

    def __call__(self, prefix: str) -> str:
        """Return `prefix` if it is unused, else `prefix_N`, and mark the name as used."""
        name = prefix
        while name in self.used:
            self.counts[prefix] += 1
            name = f"{prefix}_{self.counts[prefix]}"
        self.used.add(name)
        return name


def unused_name(name: str, used: Collection[str]) -> str:
    """Return `name` if it is not in `used`, else `name_N`."""
    return next(n for n in chain([name], (f"{name}_{k}" for k in count(len(used)))) if n not in used)


def bound_names(body: Block) -> set[str]:
    """Return every name that a statement in `body` binds."""
    return {name for s in tile.walk(body) for name in names_bound_by(s)}


def names_bound_by(s: Stmt) -> list[str]:
    """Return the names that `s` itself binds, for later statements and for statements inside it."""
    return [*names_bound_after(s), *(r.var for r in tile.stmt_ranges(s))]


def names_bound_after(s: Stmt) -> list[str]:
    """Return the name of the value or buffer that `s` binds for later statements."""
    return [s.name] if isinstance(s, (Let, Reduce)) else [s.buffer] if isinstance(s, Local) else []


def with_fresh_names(stmt: S, supply: NameSupply) -> S:
    """Rename everything that `stmt` binds, so that a copy can be placed in the same block."""
    return substitute_names(stmt, {name: supply(name) for name in sorted(bound_names((stmt,)))})


def with_unique_names(kernel: Kernel) -> Kernel:
    """Rename such that no name is bound twice, not even in different blocks; return `kernel` itself if that holds already."""
    names = [name for s in tile.walk(kernel.body) for name in names_bound_by(s)]
    if len(set(names)) == len(names):
        return kernel
    supply, seen = NameSupply(kernel), set[str]()

    def block(body: Block) -> Block:
        out: list[Stmt] = []
        pending = list(body)
        while pending:
            stmt = pending.pop(0)
            renamed = {name: supply(name) for name in names_bound_by(stmt) if name in seen}
            after = {name: renamed[name] for name in names_bound_after(stmt) if name in renamed}
            stmt, pending = substitute_names(stmt, renamed), [substitute_names(s, after) for s in pending]
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
    """Replace every use and binding of a name in `names`."""
    variables: dict[str, Dim] = {old: var(new) for old, new in names.items() if old != new}
    return _rewrite(stmt, names, lambda d: substitute(d, variables)) if variables else stmt


def substitute_indices(stmt: S, values: Mapping[str, Dim], bounds: Bounds | None = None) -> S:
    """Replace variables of enclosing loops by index expressions, simplified under `bounds` of the remaining variables."""
    return _rewrite(stmt, {}, lambda d: substitute(d, values, bounds))


def map_indices(stmt: S, rule: Callable[[Dim], Dim]) -> S:
    """Replace every index expression by `rule(expression)`."""
    return _rewrite(stmt, {}, rule)


def _rewrite(stmt: S, names: Mapping[str, str], dim: Callable[[Dim], Dim]) -> S:
    def renamed(name: str) -> str:
        return names.get(name, name)

    def dims(index: Iterable[Dim]) -> tuple[Dim, ...]:
        return tuple(map(dim, index))

    def expr(e: Expr) -> Expr:
        def rule(x: Expr) -> Expr:
            if isinstance(x, Ref):
                return Ref(x.dtype, names[x.name]) if x.name in names else x
            if isinstance(x, Load):
                buffer, index = renamed(x.buffer), dims(x.index)
                is_same = buffer == x.buffer and index == x.index  # keeps what shares `x` as it is
                return x if is_same else Load(x.dtype, buffer, index, x.mask, x.other)
            if isinstance(x, scalar.IndexValue):
                return x if (position := dim(x.index)) == x.index else scalar.index_value(position)
            return x

        return scalar.transform(e, rule)

    def header(r: Range) -> Range:
        return r.with_(var=renamed(r.var), lo=dim(r.lo), hi=dim(r.hi))

    def one(s: Stmt) -> Stmt:
        if isinstance(s, Let):
            return Let(renamed(s.name), expr(s.value))
        if isinstance(s, Store):
            nontemporal = None if s.nontemporal is None else dim(s.nontemporal)
            return Store(renamed(s.buffer), dims(s.index), expr(s.value), nontemporal)
        if isinstance(s, Local):
            return replace(s, buffer=renamed(s.buffer), type=replace(s.type, shape=dims(s.type.shape)))
        if isinstance(s, Prefetch):
            return replace(s, buffer=renamed(s.buffer), index=dims(s.index))
        if isinstance(s, tile.AsyncCopy):
            (source, at, _), (target, to, _) = s.boxes
            return tile.AsyncCopy(renamed(source), dims(at), renamed(target), dims(to), dims(s.sizes))
        if isinstance(s, tile.Wait):
            return replace(s, buffer=renamed(s.buffer))
        if isinstance(s, BoundsCheck):
            return BoundsCheck(renamed(s.name), dim(s.low), dim(s.high))
        if isinstance(s, For):
            return replace(s, range=header(s.range), body=tuple(map(one, s.body)))
        return Reduce(renamed(s.name), s.op, tuple(map(header, s.ranges)), tuple(map(one, s.body)), expr(s.value))

    return one(stmt)  # type: ignore[return-value]  # `one` keeps the kind of statement
