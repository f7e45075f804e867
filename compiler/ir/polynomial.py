"""Polynomial evaluation with fused multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.scalar import Expr, const, fma

MAX_HORNER_DEGREE = 10
"""Highest degree evaluated by one dependent fma chain; above it two chains of half the length are used (empirical)."""


def horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Build `c0 + c1 x + c2 x^2 + ...` by Horner's rule: one fma per degree, each depending on the previous one."""
    *lower, leading = coefficients
    total: Expr = const(leading, x.dtype)
    for c in reversed(lower):
        total = fma(total, x, c)
    return total


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Build `c0 + c1 x + c2 x^2 + ...`, by Horner's rule up to degree `MAX_HORNER_DEGREE`.

    Above it, c0 + x (even(x^2) + x odd(x^2)): two independent chains with one more multiplication and half the latency
    (first step of Estrin's scheme; Muller, "Elementary Functions", 3rd ed., 5.2).  c0 is added last, because rounding a
    sum that contains it twice would cost half an ulp.
    """
    if len(coefficients) <= MAX_HORNER_DEGREE + 1:
        return horner(x, coefficients)
    c0, *higher = coefficients
    square = x * x
    return fma(x, fma(x, horner(square, higher[1::2]), horner(square, higher[0::2])), c0)
