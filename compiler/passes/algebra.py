"""Exact algebra on scalar expressions: every rule keeps every bit, for zeros of both signs, infinities and NaN too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import copysign
from typing import TypeAlias

from compiler.ir.scalar import Call, Const, Expr, transform
from compiler.ir.types import DType, bf16, boolean, f16, f32, f64

Rule: TypeAlias = Callable[[Call, "tuple[Expr, ...]"], Expr | None]


def simplify(e: Expr) -> Expr:
    """`e` without the operations that do nothing."""
    return transform(e, _simplify_one)


def _simplify_one(e: Expr) -> Expr:
    rule = RULES.get(e.primitive) if isinstance(e, Call) else None
    return (rule(e, e.operands) if rule and isinstance(e, Call) else None) or e


def _is(e: Expr, value: float) -> bool:
    """Whether `e` is the constant `value`, with its sign."""
    return isinstance(e, Const) and e.value == value and copysign(1, e.value) == copysign(1, value)


def _nothing(dtype: DType) -> float:
    """What can be added to any value of `dtype` and leave it as it was: for floats -0.0, as -0.0 + 0.0 is 0.0."""
    return -0.0 if dtype.is_float else 0


def _either(unit: Callable[[DType], float]) -> Rule:
    """x op unit -> x, unit op x -> x."""

    def rule(e: Call, args: tuple[Expr, ...]) -> Expr | None:
        x, y = args
        return x if _is(y, unit(e.dtype)) else y if _is(x, unit(e.dtype)) else None

    return rule


def _right(unit: float) -> Rule:
    """x op unit -> x."""
    return lambda e, args: args[0] if _is(args[1], unit) else None


def _twice(e: Call, args: tuple[Expr, ...]) -> Expr | None:
    """f(f(x)) -> x"""
    inner = args[0]
    return inner.operands[0] if isinstance(inner, Call) and inner.primitive == e.primitive else None


def _once(e: Call, args: tuple[Expr, ...]) -> Expr | None:
    """f(f(x)) -> f(x)"""
    return args[0] if isinstance(args[0], Call) and args[0].primitive == e.primitive else None


def _same(e: Call, args: tuple[Expr, ...]) -> Expr | None:
    """x op x -> x"""
    return args[0] if args[0].same(args[1]) else None


def _choose(e: Call, args: tuple[Expr, ...]) -> Expr | None:
    """where(c, x, x) -> x; where(true, x, y) -> x"""
    choice, x, y = args
    if isinstance(choice, Const):
        return x if choice.value else y
    return x if x.same(y) else None


def _bits(ones: bool) -> Rule:
    """x op x -> x, and x op the neutral bits -> x."""

    def rule(e: Call, args: tuple[Expr, ...]) -> Expr | None:
        neutral = (
            (True if e.dtype == boolean else -1 if e.dtype.kind == "int" else (1 << e.dtype.bits) - 1) if ones else 0
        )
        return _same(e, args) or _either(lambda _: neutral)(e, args)

    return rule


def _cast(e: Call, args: tuple[Expr, ...]) -> Expr | None:
    """x to its own type; there and back through a type that holds every value of x."""
    inner = args[0]
    if inner.dtype == e.dtype:
        return inner
    if isinstance(inner, Call) and inner.primitive == "cast":
        source = inner.operands[0]
        if source.dtype == e.dtype and holds(inner.dtype, source.dtype):
            return source
    return None


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` survives a cast to `wide` and back."""
    if narrow in (wide, boolean):
        return True
    if wide.is_float and narrow.is_float:
        return wide in {f64: (f64,), f32: (f64,), f16: (f32, f64), bf16: (f32, f64)}[narrow]
    if wide.is_float:
        return narrow.bits + (narrow.kind == "uint") <= {f64: 53, f32: 24, f16: 11, bf16: 8}[wide]
    if wide.kind == narrow.kind:
        return wide.bits >= narrow.bits
    return wide.kind == "int" and narrow.kind == "uint" and wide.bits > narrow.bits


RULES: Mapping[str, Rule] = {
    "add": _either(_nothing),
    "sub": _right(0),  # x - 0.0 is x, -0.0 included
    "mul": _either(lambda _: 1),
    "div": _right(1),
    "neg": _twice,
    "not": _twice,
    "abs": _once,
    "floor": _once,
    "ceil": _once,
    "trunc": _once,
    "round": _once,
    "min": _same,
    "max": _same,
    "and": _bits(ones=True),
    "or": _bits(ones=False),
    "xor": lambda e, args: args[0] if _is(args[1], 0) else args[1] if _is(args[0], 0) else None,
    "shl": _right(0),
    "shr": _right(0),
    "lshr": _right(0),
    "where": _choose,
    "cast": _cast,
}
