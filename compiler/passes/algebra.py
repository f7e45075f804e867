"""Exact algebraic simplification of scalar expressions: bit-identical for signed zeros, infinities and NaN too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import copysign
from typing import TypeAlias

from compiler.ir.scalar import Const, Expr, PrimitiveCall, transform
from compiler.ir.types import DType, boolean

SimplificationRule: TypeAlias = Callable[[PrimitiveCall, "tuple[Expr, ...]"], Expr | None]


def simplify_scalar(e: Expr) -> Expr:
    """Remove identity operations from `e`."""
    return transform(e, _simplify_call)


def _simplify_call(e: Expr) -> Expr:
    rule = SIMPLIFICATIONS.get(e.primitive) if isinstance(e, PrimitiveCall) else None
    return (rule(e, e.operands) if rule and isinstance(e, PrimitiveCall) else None) or e


def _is_constant(e: Expr, value: float) -> bool:
    """Return True if `e` is the constant `value`, with the same sign."""
    return isinstance(e, Const) and e.value == value and copysign(1, e.value) == copysign(1, value)


def _additive_identity(dtype: DType) -> float:
    """Return the additive identity of `dtype`: -0.0 for floats, because -0.0 + 0.0 is 0.0."""
    return -0.0 if dtype.is_float else 0


def _two_sided_identity(unit: Callable[[DType], float]) -> SimplificationRule:
    """x op unit -> x, unit op x -> x."""

    def rule(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
        x, y = args
        return x if _is_constant(y, unit(e.dtype)) else y if _is_constant(x, unit(e.dtype)) else None

    return rule


def _right_identity(unit: float) -> SimplificationRule:
    """x op unit -> x."""
    return lambda e, args: args[0] if _is_constant(args[1], unit) else None


def _involution(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
    """f(f(x)) -> x"""
    inner = args[0]
    return inner.operands[0] if isinstance(inner, PrimitiveCall) and inner.primitive == e.primitive else None


def _idempotent(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
    """f(f(x)) -> f(x)"""
    return args[0] if isinstance(args[0], PrimitiveCall) and args[0].primitive == e.primitive else None


def _equal_operands(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
    """x op x -> x"""
    return args[0] if args[0].is_structurally_equal(args[1]) else None


def _simplify_where(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
    """where(c, x, x) -> x; where(true, x, y) -> x"""
    choice, x, y = args
    if isinstance(choice, Const):
        return x if choice.value else y
    return x if x.is_structurally_equal(y) else None


def _bitwise(ones: bool) -> SimplificationRule:
    """x op x -> x, x op identity -> x; the identity has all bits set (`ones`) or none."""

    def rule(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
        all_ones = True if e.dtype == boolean else -1 if e.dtype.kind == "int" else (1 << e.dtype.bits) - 1
        return _equal_operands(e, args) or _two_sided_identity(lambda _: all_ones if ones else 0)(e, args)

    return rule


def _simplify_cast(e: PrimitiveCall, args: tuple[Expr, ...]) -> Expr | None:
    """cast<T>(x: T) -> x; cast<T>(cast<U>(x: T)) -> x if U represents every value of T."""
    inner = args[0]
    if inner.dtype == e.dtype:
        return inner
    if isinstance(inner, PrimitiveCall) and inner.primitive == "cast":
        source = inner.operands[0]
        if source.dtype == e.dtype and can_represent(inner.dtype, source.dtype):
            return source
    return None


def can_represent(wide: DType, narrow: DType) -> bool:
    """Return True if every value of `narrow` survives a cast to `wide` and back."""
    return narrow in (wide, boolean) or wide.includes(narrow)


SIMPLIFICATIONS: Mapping[str, SimplificationRule] = {
    "add": _two_sided_identity(_additive_identity),
    "sub": _right_identity(0),  # x - 0.0 is x, -0.0 included
    "mul": _two_sided_identity(lambda _: 1),
    "div": _right_identity(1),
    "neg": _involution,
    "not": _involution,
    "abs": _idempotent,
    "floor": _idempotent,
    "ceil": _idempotent,
    "trunc": _idempotent,
    "round": _idempotent,
    "min": _equal_operands,
    "max": _equal_operands,
    "and": _bitwise(ones=True),
    "or": _bitwise(ones=False),
    "xor": lambda e, args: args[0] if _is_constant(args[1], 0) else args[1] if _is_constant(args[0], 0) else None,
    "shl": _right_identity(0),
    "shr": _right_identity(0),
    "lshr": _right_identity(0),
    "where": _simplify_where,
    "cast": _simplify_cast,
}
