"""Division of many numbers by the same one."""

from __future__ import annotations

from compiler.ir.scalar import Const, Expr, absolute, const, fma, where
from compiler.math.binary import INF, format_of


def quotient(x: Expr, y: Expr) -> Expr:
    """x / y, where 1 / y is computed once for many x.

    The bits of a division, with three exceptions: where |x| or the quotient is within 2^25 of the least normal number, the error is below 1 ulp;
    quotients within 2 ulp of the greatest number may be infinite; a constant y has to be `has_plain_reciprocal`.  Cost: 7 operations
    without those on y alone, 6 where y is a constant.

    x times the rounded reciprocal is within 2 ulp of the quotient, and one step of Newton's method rounds it correctly (Markstein,
    "Computation of Elementary Functions on the IBM RISC System/6000 Processor", 1990).  Divisors are scaled so that they have a
    normal reciprocal.  Where the rest is zero, infinite or NaN, the product is the quotient: -0.0 stays negative, too large quotients
    infinite.
    """
    if isinstance(y, Const):
        return _corrected(x, y)
    bias = format_of(y).bias
    size, large, small = absolute(y), const(2.0 ** (bias // 2), y.dtype), const(2.0 ** -(bias // 2), y.dtype)
    scale = where(size < small, large, where(size > 2.0 ** (bias - 2), small, const(1.0, y.dtype)))
    return _corrected(x * scale, y * scale)


def has_plain_reciprocal(y: Const) -> bool:
    """Return True if a constant and its reciprocal are far from the ends of the range of its dtype."""
    return 2.0 ** -(format_of(y).bias // 2) <= abs(y.value) <= 2.0 ** (format_of(y).bias // 2)


def _corrected(x: Expr, y: Expr) -> Expr:
    reciprocal = 1 / y
    product = x * reciprocal
    rest = fma(-product, y, x)
    size = absolute(rest)
    return where((size > 0) & (size < INF), fma(rest, reciprocal, product), product)
