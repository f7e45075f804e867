"""Inverse trigonometric functions: asin, acos and atan.

Minimax polynomials (as in exponential.py) on part of the range, extended by these identities:

    asin x = pi/2 - 2 asin sqrt((1 - x) / 2)        acos x = pi/2 - asin x        atan x = pi/2 - atan (1/x)
"""

from __future__ import annotations

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, absolute, copysign, fma, sqrt, where
from compiler.ir.types import f32, f64

HALF_PI = {f32: (1.5707964, -4.371139e-08), f64: (1.5707963267948966, 6.123233995736766e-17)}  # high and low part

ASIN = {
    f32: (0.16666731, 0.07495957, 0.045401495, 0.02447564, 0.041715857),
    f64: (
        0.16666666666666702, 0.07499999999982766, 0.044642857165309704, 0.03038194308915463, 0.02237220552476178,
        0.017351764850893136, 0.013979147972984215, 0.011411550797531398, 0.01071422741875643, 0.003940600430279901,
        0.021169048375312097, -0.020275391869714814, 0.03219687536265197,
    ),
}  # fmt: skip
"""(asin x - x) / x^3 in x^2 for |x| <= 1/2: asin x to 2^-27.5 (degree 4) and 2^-59.7 (degree 12)."""

ATAN = {
    f32: (
        -0.3333331, 0.1999883, -0.14266853, 0.10964461, -0.084363714, 0.058482897, -0.03167126, 0.011166496, -0.0018475353,
    ),
    f64: (
        -0.3333333333333332, 0.1999999999999505, -0.14285714285271536, 0.11111111092891116, -0.09090908657321375,
        0.07692300984867634, -0.06666594243947821, 0.05881780588225908, -0.05259733781650661, 0.04746007074490108,
        -0.04289441904586565, 0.038278006858256955, -0.03290514736723556, 0.026318326225166513, -0.01879631660310871,
        0.011471913815667258, -0.005711554655006922, 0.002198320013016758, -0.0006081105395351919,
        0.00010693029532674592, -8.939988684895472e-06,
    ),
}  # fmt: skip
"""(atan x - x) / x^3 in x^2 for |x| <= 1: atan x to 2^-28.4 (degree 8) and 2^-60.0 (degree 20)."""


def _from_half_pi(y: Expr) -> Expr:
    """Return pi/2 - y, with pi/2 in twice the precision.  2 operations."""
    high, low = HALF_PI[y.dtype]
    return high - (y - low)


def _asin_of_small(a: Expr) -> tuple[Expr, Expr]:
    """Return a <= 1/2, and the arcsine of a if that is true, else of sqrt((1 - a) / 2); NaN for a > 1."""
    small = a <= 0.5
    square = where(small, a * a, fma(a, -0.5, 0.5))
    root = where(small, a, sqrt(square))
    return small, fma(root * square, polynomial(square, ASIN[a.dtype]), root)


def asin(x: Expr) -> Expr:
    """Arcsine.

    Error 2.0 ulp in f32, 2.1 in f64.  Cost f32: 17 operations, f64: 26, one of them a square root.
    """
    small, y = _asin_of_small(absolute(x))
    high, low = HALF_PI[x.dtype]
    return copysign(where(small, y, fma(y, -2.0, high) + low), x)


def acos(x: Expr) -> Expr:
    """Arccosine.

    Error 1.2 ulp in f32, 1.2 in f64.  Cost f32: 21 operations, f64: 30, one of them a square root.
    """
    small, y = _asin_of_small(absolute(x))
    from_half_pi = _from_half_pi(where(small, copysign(y, x), y))
    return where(small, from_half_pi, where(x > 0, y, from_half_pi) * 2)


def atan(x: Expr) -> Expr:
    """Arctangent.

    Error 1.4 ulp in f32, 2.1 in f64.  Cost f32: 19 operations, f64: 32, one of them a division.
    """
    a = absolute(x)
    large = a > 1
    t = where(large, 1 / a, a)
    square = t * t
    y = fma(square * t, polynomial(square, ATAN[x.dtype]), t)
    return copysign(where(large, _from_half_pi(y), y), x)
