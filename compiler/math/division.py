"""Division of many numbers by the same one."""

from __future__ import annotations

from compiler.ir.scalar import Const, Expr, absolute, const, copysign, fma, where
from compiler.math.binary import INF, format_of


def quotient(x: Expr, y: Expr, is_share: bool = False) -> Expr:
    """x / y, where 1 / y is computed once for many x; `is_share` promises that 0 <= x <= y, or NaN.

    The bits of a division, with three exceptions: where |x| or the quotient is within 2^25 of the least normal number, the error is below 1 ulp;
    quotients within 2 ulp of the greatest number may be infinite; a constant y has to be `has_plain_reciprocal`.  Cost: 6 operations
    without those on y alone, 5 where y is a constant, 4 for shares.

    x times the rounded reciprocal is within 2 ulp of the quotient, and one step of Newton's method rounds it correctly (Markstein,
    "Computation of Elementary Functions on the IBM RISC System/6000 Processor", 1990).  Divisors are scaled so that they have a
    normal reciprocal, and are positive, so that a rest of zero leaves the sign of a quotient of zero.
    """
    if isinstance(y, Const):
        return _corrected(x, y, is_share) if y.value > 0 else _corrected(-x, const(-y.value, y.dtype), is_share)
    bias = format_of(y).bias
    size, large, small = absolute(y), const(2.0 ** (bias // 2), y.dtype), const(2.0 ** -(bias // 2), y.dtype)
    scale = where(size < small, large, where(size > 2.0 ** (bias - 2), small, const(1.0, y.dtype)))
    scale = scale if is_share else copysign(scale, y)
    return _corrected(x * scale, y * scale, is_share)


def has_plain_reciprocal(y: Const) -> bool:
    """Return True if a constant and its reciprocal are far from the ends of the range of its dtype."""
    return 2.0 ** -(format_of(y).bias // 2) <= abs(y.value) <= 2.0 ** (format_of(y).bias // 2)


def _corrected(x: Expr, y: Expr, is_share: bool) -> Expr:
    """Return x / y for a positive y.

    The correction is NaN where the product is infinite, or y: then the product is the quotient.  A share is finite, so that a finite y is all
    its correction needs.
    """
    reciprocal = 1 / y
    product = x * reciprocal
    finite = where(y < INF, y, 1) if is_share else y
    corrected = fma(-fma(product, finite, -x), reciprocal, product)
    return corrected if is_share else where(corrected.eq(corrected), corrected, product)
