"""Scopes of the statements of a kernel: what is defined before each, on which loops it depends, what it accesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes, interval, variables
from compiler.ir.tile.kernel import (
    AsyncCopy,
    Block,
    For,
    Kernel,
    Let,
    Local,
    Prefetch,
    Range,
    Reduce,
    Stmt,
    Store,
    stmt_body,
    stmt_ranges,
)
from compiler.ir.types import DType, TensorType, i64


@dataclass(frozen=True)
class VisibleBuffer:
    """A buffer in scope: type, role ("local" if the kernel declares it) and number of loops around its declaration."""

    type: TensorType
    role: str
    depth: int = 0


@dataclass(frozen=True)
class VerifierScope:
    """Scope of a statement: names with dtypes, loop variables on which each name depends, buffers, enclosing loops."""

    names: Mapping[str, DType] = field(default_factory=dict)
    loop_deps: Mapping[str, frozenset[str]] = field(default_factory=dict)
    buffers: Mapping[str, VisibleBuffer] = field(default_factory=dict)
    enclosing_loops: tuple[tuple[Range, For | Reduce], ...] = ()

    def is_defined(self, name: str) -> bool:
        return name in self.names or name in self.buffers

    def bind(self, name: str, dtype: DType, loop_deps: frozenset[str]) -> VerifierScope:
        return replace(self, names={**self.names, name: dtype}, loop_deps={**self.loop_deps, name: loop_deps})

    def declare(self, name: str, buffer: VisibleBuffer) -> VerifierScope:
        return replace(self, buffers={**self.buffers, name: buffer})

    def enter(self, stmt: For | Reduce) -> VerifierScope:
        """Return the scope of the body of a loop or reduction."""
        inner = self
        for r in stmt_ranges(stmt):
            loop_deps = inner.loop_variables(variables(r.lo) | variables(r.hi)) | {r.var}
            inner = inner.bind(r.var, i64, loop_deps)
            inner = replace(inner, enclosing_loops=(*inner.enclosing_loops, (r, stmt)))
        return inner

    def loop_variables(self, names: frozenset[str]) -> frozenset[str]:
        """Return the loop variables on which the values of `names` depend."""
        return frozenset().union(*(self.loop_deps.get(n, frozenset()) for n in names))

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Inclusive bounds of the loop variables; empty if some enclosing loop has no iterations."""
        result: dict[str, tuple[int, int]] = {}
        for r, _ in self.enclosing_loops:
            low, high = interval(r.lo, result), interval(r.hi, result)
            if low and high and not dynamic_sizes(r.lo) and not dynamic_sizes(r.hi):
                result[r.var] = low[0], high[1] - 1
        return result if all(low <= high for low, high in result.values()) else {}

    @property
    def symbolic_bound_loops(self) -> frozenset[str]:
        """The loop variables whose bounds are not constant."""
        ranges = [r for r, _ in self.enclosing_loops]
        return frozenset(r.var for r in ranges if isinstance(r.lo, IndexExpr) or isinstance(r.hi, IndexExpr))


@dataclass(frozen=True)
class ScopedStmt:
    """A statement, the scope before it, and the scope of its value (for a reduction, the end of its body)."""

    stmt: Stmt
    scope: VerifierScope
    value_scope: VerifierScope

    @property
    def value(self) -> Expr | None:
        return self.stmt.value if isinstance(self.stmt, (Let, Store, Reduce)) else None

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        return () if self.value is None else self.value.subexprs

    @cached_property
    def written(self) -> tuple[str, tuple[Dim, ...]] | None:
        """The buffer in scope that the statement itself writes, and its index there; None if there is none."""
        stmt = self.stmt
        places = (stmt.buffer, stmt.index) if isinstance(stmt, Store) else None
        places = (stmt.target, stmt.target_index) if isinstance(stmt, AsyncCopy) else places
        return places if places and places[0] in self.scope.buffers else None

    def accesses(self) -> Iterator[tuple[str, tuple[Dim, ...], bool]]:
        """Yield every access as (buffer, index, True if it may be out of bounds)."""
        if isinstance(self.stmt, Store):
            yield self.stmt.buffer, self.stmt.index, False
        if isinstance(self.stmt, Prefetch):  # only a hint: may be out of bounds
            yield self.stmt.buffer, self.stmt.index, True
        if isinstance(self.stmt, AsyncCopy):
            for buffer, index, extents in self.stmt.boxes:
                yield buffer, index, False
                yield buffer, tuple(d + n - 1 for d, n in zip(index, extents, strict=False)), False
        yield from ((e.buffer, e.index, e.mask is not None) for e in self.exprs if isinstance(e, Load))


def scoped_stmts(kernel: Kernel) -> Iterator[ScopedStmt]:
    """Yield every statement with its scope, in program order."""
    scope = VerifierScope()
    for p in kernel.params:
        scope = scope.declare(p.name, VisibleBuffer(p.type, p.role))
    yield from _scoped_stmts(kernel.body, scope, [])


def _scoped_stmts(body: Block, scope: VerifierScope, end_scopes: list[VerifierScope]) -> Iterator[ScopedStmt]:
    """Yield the statements of a block, then append the scope at its end to `end_scopes`."""
    for stmt in body:
        inner, nested = scope, list[ScopedStmt]()
        if isinstance(stmt, (For, Reduce)):
            body_end: list[VerifierScope] = []
            nested = list(_scoped_stmts(stmt_body(stmt), scope.enter(stmt), body_end))
            inner = body_end[0]
        yield ScopedStmt(stmt, scope, inner)
        yield from nested
        if isinstance(stmt, Let):
            scope = scope.bind(stmt.name, stmt.value.dtype, scope.loop_variables(stmt.value.used_names))
        elif isinstance(stmt, Reduce):
            loop_deps = inner.loop_variables(stmt.value.used_names) - {r.var for r in stmt.ranges}
            scope = scope.bind(stmt.name, stmt.value.dtype, loop_deps)
        elif isinstance(stmt, Local):
            scope = scope.declare(stmt.buffer, VisibleBuffer(stmt.type, "local", len(scope.enclosing_loops)))
    end_scopes.append(scope)
