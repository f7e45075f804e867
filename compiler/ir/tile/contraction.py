"""Contractions: reductions of a function of two operands, above all sums of products, that register tiles are made for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import TypeGuard

from compiler.ir.scalar import Const, Expr, PrimitiveCall
from compiler.ir.symbolic.index_expr import product
from compiler.ir.tile.kernel import Let, Reduce, Stmt, dim_hint, walk
from compiler.ir.types import DType, f32, i32


@dataclass(frozen=True)
class Contraction:
    """A reduction that adds `lhs` * `rhs` over all its ranges, or their dot products if they are packed."""

    reduction: Reduce
    lhs: Expr
    rhs: Expr

    def matrix_operands(self, dtypes: Collection[tuple[str, str]]) -> tuple[Expr, Expr] | None:
        """Return the factors as a matrix unit takes them: without the casts that widen both, if it multiplies the narrow dtype.

        `dtypes` are its pairs of operand and accumulator, by name; None if no pair fits.  It truncates factors of TF32 itself.
        """
        factors = [(truncated(e) or e) if self.is_tf32 else e for e in (self.lhs, self.rhs)]
        for x, y in (map(uncast, factors), factors):
            if x.dtype == y.dtype and (x.dtype.name, self.accumulator.name) in dtypes:
                return x, y
        return None

    @property
    def is_tf32(self) -> bool:
        """True if both factors are truncated to TF32."""
        return truncated(self.lhs) is not None and truncated(self.rhs) is not None

    @property
    def in_tf32(self) -> Reduce:
        """The reduction with both factors truncated to TF32."""
        x, y = ((e.bitcast(i32) & TF32_MASK).bitcast(f32) for e in (self.lhs, self.rhs))
        return replace(self.reduction, value=x * y)

    @property
    def exchanged(self) -> Reduce:
        """The reduction with its two factors in the other order."""
        value = self.reduction.value
        assert isinstance(value, PrimitiveCall)
        return replace(self.reduction, value=replace(value, operands=(self.rhs, self.lhs)))

    @property
    def accumulator(self) -> DType:
        """Dtype that products are added in."""
        return self.reduction.value.dtype


def contraction_of(stmt: Stmt) -> Contraction | None:
    """Return the contraction that a statement is, or None."""
    if isinstance(stmt, Reduce) and stmt.op == "add":
        value = stmt.value
        if isinstance(value, PrimitiveCall) and value.primitive in ("mul", "dot"):
            return Contraction(stmt, *value.operands)
    return None


def adds_products(stmt: Stmt) -> TypeGuard[Reduce]:
    """Return True if `stmt` adds products, each a multiply-add."""
    return contraction_of(stmt) is not None


def is_contraction(stmt: Stmt) -> TypeGuard[Reduce]:
    """Return True if `stmt` adds products, or reduces any other function of two operands of which tiles reuse both.

    reduce max %k { yield abs(x[%i, %k] - y[%j, %k]) }     each operand varies along a loop around, on which the other does not depend
    """
    return adds_products(stmt) or (isinstance(stmt, Reduce) and pairs_operands(stmt))


def pairs_operands(s: Reduce, private: Mapping[str, Set[str]] = MappingProxyType({})) -> bool:
    """Return True if each step combines two loads of which either varies with an index around `s` that the other lacks.

    `private` has the loops of whose iterations each has a local buffer of its own, by buffer.
    """
    if not all(isinstance(t, Let) for t in s.body):
        return False
    own = {r.var for r in s.ranges} | {t.name for t in s.body if isinstance(t, Let)}
    loads = {e for value in (*(t.value for t in s.body if isinstance(t, Let)), s.value) for e in value.loads}
    around = {(e.used_names | private.get(e.buffer, set())) - own for e in loads}
    return any(x - y and y - x for x, y in combinations(around, 2))


def without_guard(stmt: Stmt) -> Stmt:
    """Return a guarded reduction without its guard, and other statements unchanged."""
    if isinstance(stmt, Reduce) and isinstance(stmt.value, PrimitiveCall) and stmt.value.primitive == "where":
        return replace(stmt, value=stmt.value.args[1])
    return stmt


TF32_MASK = -(1 << 13)
"""Bits of an f32 that TF32 has: all but the last 13 of its mantissa."""


def truncated(e: Expr) -> Expr | None:
    """Return the f32 whose bits `e` has with those beyond TF32 cleared; None if it is something else."""
    if not (isinstance(e, PrimitiveCall) and e.primitive == "bitcast" and e.dtype == f32):
        return None
    bits = e.operands[0]
    if not (isinstance(bits, PrimitiveCall) and bits.primitive == "and" and Const(i32, TF32_MASK) in bits.operands):
        return None
    (source,) = (x for x in bits.operands if x != Const(i32, TF32_MASK))
    return source.operands[0] if isinstance(source, PrimitiveCall) and source.primitive == "bitcast" else None


def uncast(e: Expr) -> Expr:
    """Return what a cast converts, or `e` itself."""
    return e.operands[0] if isinstance(e, PrimitiveCall) and e.primitive == "cast" else e


def adds_contractions(s: Stmt, max_rows: int) -> bool:
    """Return True for a reduction that computes a contraction in each step, with a factor that some other step reads again.

    Up to `max_rows` steps do not count, which are the rows of a register tile.
    """
    if not isinstance(s, Reduce) or dim_hint(product(r.extent for r in s.ranges)) <= max_rows:
        return False
    steps = {r.var for r in s.ranges if r.extent != 1}
    contractions = filter(None, map(contraction_of, walk(s.body)))
    return any(not steps <= e.used_names for c in contractions for e in (c.lhs, c.rhs) if e.loads)
