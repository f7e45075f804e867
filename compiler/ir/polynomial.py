"""Polynomials by fused multiply-adds."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.scalar import Expr, const, fma

MAX_HORNER_DEGREE = 10  # the degree from which two half as long chains are worth one multiplication more


def horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    """`c0 + c1 x + c2 x^2 + ...`, one fma after another.

    Cost: as many fma as the degree, each waiting for the one before.
    """
    *rest, last = coefficients
    total: Expr = const(last, x.dtype)
    for c in reversed(rest):
        total = fma(total, x, c)
    return total


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """`c0 + c1 x + c2 x^2 + ...`.

    Short ones by Horner's rule.  Long ones as c0 + x (even(x^2) + x odd(x^2)), whose halves run side by side: one
    multiplication more, half the latency (the first step of Estrin's scheme; Muller, "Elementary Functions", 3rd ed., 5.2).
    The first coefficient stays outside, since rounding a sum with it twice would cost half an ulp.
    """
    if len(coefficients) <= MAX_HORNER_DEGREE + 1:
        return horner(x, coefficients)
    first, *rest = coefficients
    square = x * x
    return fma(x, fma(x, horner(square, rest[1::2]), horner(square, rest[0::2])), first)
