"""Division of many numbers by the same one."""

from __future__ import annotations

from compiler.ir.scalar import Const, Expr, absolute, const, fma, where
from compiler.math.binary import INF, format_of


def quotient(x: Expr, y: Expr) -> Expr:
    """x / y, where 1 / y is computed once for many x.

    The bits of a division; where |x| is within 2^25 of the least normal number, the error is below 1 ulp.  Cost: 7 operations without those
    on y alone, 6 where y is a constant.

    x times the rounded reciprocal is within an ulp of the quotient, and one step of Newton's method rounds it correctly (Markstein,
    "Computation of Elementary Functions on the IBM RISC System/6000 Processor", 1990).  Divisors are scaled so that they have a
    reciprocal.  Where the rest is zero, infinite or NaN, the product is the quotient: -0.0 stays negative, too large quotients infinite.
    """
    if isinstance(y, Const):
        return _corrected(x, y)
    bias = format_of(y).bias
    scale = where(absolute(y) < 2.0 ** -(bias // 2), const(2.0 ** (bias // 2), y.dtype), 1.0)
    return _corrected(x * scale, y * scale)


def _corrected(x: Expr, y: Expr) -> Expr:
    reciprocal = 1 / y
    product = x * reciprocal
    rest = fma(-product, y, x)
    size = absolute(rest)
    return where((size > 0) & (size < INF), fma(rest, reciprocal, product), product)
