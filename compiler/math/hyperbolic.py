"""Hyperbolic functions: tanh, sinh and cosh.

With x = n ln 2 + r they follow from addition theorems: functions of n ln 2 are powers of two, those of r short polynomials
(minimax fits as in exponential.py).
"""

from __future__ import annotations

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, absolute, copysign, fma, where
from compiler.ir.types import f32, f64
from compiler.math.binary import bits_of, format_of, min_keeping_nan, scaled_power
from compiler.math.exponential import LOG2_E, minus_multiple_of_ln2

TANH_BOUND = {f32: 9.1, f64: 20.0}  # tanh rounds to 1 from here on
OVERFLOW_BOUND = {f32: 89.5, f64: 710.6}  # sinh and cosh are infinite from here on

ATANH_HALF = 0.55  # approximately

TANH = {
    f32: (-0.3333332, 0.13332632, -0.053856134, 0.021084735, -0.006289988),
    f64: (
        -0.33333333333333315, 0.13333333333328565, -0.05396825396463249, 0.021869488406221573, -0.008863232883606995,
        0.003592094500911185, -0.001455556885054273, 0.0005884961645360692, -0.0002335004577821533, 8.347182361568925e-05,
        -1.9582735920799566e-05,
    ),
}  # fmt: skip
"""(tanh r - r) / r^3 in r^2 for |r| <= 0.5505: tanh r to 2^-29.7 (degree 4) and 2^-60.4 (degree 10)."""

SINH = {
    f32: (0.16666667, 0.008333175, 0.00019974087),
    f64: (
        0.16666666666666674, 0.008333333333323277, 0.00019841269882501576, 2.7557247485572805e-06,
        2.510799081264614e-08,
    ),
}  # fmt: skip
"""(sinh r - r) / r^3 in r^2 for |r| <= 0.3466: sinh r to 2^-34.3 (degree 2) and 2^-61.6 (degree 4)."""
COSH = {
    f32: (0.5, 0.04166646, 0.0013935426),
    f64: (
        0.500000000000001, 0.0416666666665333, 0.0013888888943106277, 2.4801493455892025e-05, 2.7630163822223145e-07,
    ),
}  # fmt: skip
"""(cosh r - 1) / r^2 in r^2 for |r| <= 0.3466: cosh r to 2^-33.2 (degree 2) and 2^-57.9 (degree 4), relative to 1."""


def tanh(x: Expr) -> Expr:
    """tanh x.

    Error 1.7 ulp in f32, 1.8 in f64.  Cost f32: 24 operations, f64: 30, one of them a division.

    A polynomial up to 0.55, where tanh is 1/2.  Beyond, with n = round(2|x| / ln 2), r = |x| - n ln 2 / 2 and t = tanh r by
    the same polynomial,

        tanh |x| = 1 - 2 (1 - t) / (2^n (1 + t) + (1 - t))

    The second term is at most 1/2, so its rounding errors are halved.  No exponential is needed.
    """
    a = min_keeping_nan(absolute(x), TANH_BOUND[x.dtype])
    n, half_power = scaled_power(a, 2 * LOG2_E, extra=-1)
    small = a < ATANH_HALF
    r = where(small, a, minus_multiple_of_ln2(a, n, fraction=0.5))
    square = r * r
    t = fma(square * r, polynomial(square, TANH[x.dtype]), r)
    one_minus_t = 1 - t
    complement = one_minus_t / fma(one_minus_t, 0.5, fma(t, half_power, half_power))
    return copysign(where(small, t, 1 - complement), x)


def _sinh_cosh_terms(a: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return 2^n / 4, 2^-n / 4, sinh r and cosh r - 1 for a >= 0."""
    form = format_of(a)
    a = min_keeping_nan(a, OVERFLOW_BOUND[a.dtype])
    n, power = scaled_power(a, LOG2_E, extra=-2)
    inverse_bits = 2 * form.power_code(-2) - bits_of(power)
    inverse = where(inverse_bits < 0, 0, inverse_bits).bitcast(a.dtype)  # negligible long before it becomes 0
    r = minus_multiple_of_ln2(a, n)
    square = r * r
    sinh_r = fma(square * r, polynomial(square, SINH[a.dtype]), r)
    cosh_r_minus_1 = square * polynomial(square, COSH[a.dtype])
    return power, inverse, sinh_r, cosh_r_minus_1


def sinh(x: Expr) -> Expr:
    """sinh x.

    Error 1.9 ulp in f32, 2.3 in f64.  Cost f32: 27 operations, f64: 31.

    sinh(n ln 2 + r) = (2^n - 2^-n)/2 cosh r + (2^n + 2^-n)/2 sinh r, computed as half of it so that 2^n does not overflow.
    A denormal must not be halved, and is its own sinh.
    """
    a = absolute(x)
    power, inverse, sinh_r, cosh_r_minus_1 = _sinh_cosh_terms(a)
    difference = power - inverse
    y = fma(difference, cosh_r_minus_1, fma(power + inverse, sinh_r, difference)) * 2
    return where(a < 16 * format_of(x).tiny, x, copysign(y, x))


def cosh(x: Expr) -> Expr:
    """cosh x.

    Error 1.5 ulp in f32, 1.5 in f64.  Cost f32: 25 operations, f64: 29.
    """
    power, inverse, sinh_r, cosh_r_minus_1 = _sinh_cosh_terms(absolute(x))
    small_terms = fma(power + inverse, cosh_r_minus_1, fma(power - inverse, sinh_r, inverse))
    return (small_terms + power) * 2
