"""Exponentials: exp, exp2, both without subnormal results, and expm1.

    e^x = 2^n e^r,  n = round(x / ln 2),  r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2]

Argument reduction after Cody and Waite ("Software Manual for the Elementary Functions", 1980): ln 2 is a sum of two floats.
With fma the first step is exact although the high part uses all its bits.  The polynomials are minimax fits (Remez, 200 bits).
Their coefficients are rounded one by one from the lowest, and the others refitted each time.  Quoted errors are those of the
rounded polynomials, relative to the function.
"""

from __future__ import annotations

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, copysign, fma, scale, where
from compiler.ir.types import f32, f64
from compiler.math.binary import clamp, min_keeping_nan, scaled_integer, scaled_power, scaled_power_factors

LOG2_E = 1.4426950408889634
LN2 = {f32: (0.6931472, -1.9046543e-09), f64: (0.6931471805599453, 2.3190468138462996e-17)}  # high and low part

EXP = {
    f32: (0.49999994, 0.16666517, 0.041668102, 0.008369193, 0.0013838934),
    f64: (
        0.5000000000000011, 0.16666666666666438, 0.0416666666665258, 0.008333333333473747, 0.0013888888944857502,
        0.00019841269560375715, 2.480149175603464e-05, 2.7557530889849147e-06, 2.763075798619793e-07,
        2.5020075536736372e-08,
    ),
}  # fmt: skip
"""(e^r - 1 - r) / r^2 on |r| <= 0.3466: e^r to 2^-28.2 (degree 4) and 2^-57.3 (degree 9)."""

EXPM1 = {
    f32: (0.5, 0.16666666, 0.041666467, 0.008333644, 0.001393507, 0.00019663437),
    f64: (
        0.5000000000000007, 0.16666666666666696, 0.0416666666665607, 0.008333333333298124, 0.0013888888936231564,
        0.00019841269950752785, 2.4801500377214884e-05, 2.7557186676039046e-06, 2.7627743232169855e-07,
        2.5124461043665923e-08,
    ),
}  # fmt: skip
"""(e^r - 1 - r) / r^2 on |r| <= 0.3466: e^r - 1 to 2^-31.0 (degree 5) and 2^-55.4 (degree 9)."""

EXP2 = {
    f32: (0.6931472, 0.24022594, 0.055503663, 0.009625446, 0.0013387927, 0.00013331958),
    f64: (
        0.6931471805599453, 0.24022650695910172, 0.055504108664824574, 0.009618129107577063, 0.0013333558145567047,
        0.00015403530478348947, 1.5252734697022332e-05, 1.3215424695855518e-06, 1.0177695137495331e-07,
        7.075610293052233e-09, 4.509933750252856e-10,
    ),
}  # fmt: skip
"""(2^r - 1) / r on |r| <= 1/2: 2^r to 2^-26.3 (degree 5) and 2^-55.9 (degree 10)."""

EXP_BOUNDS = {f32: (-176.1, 89.0), f64: (-1418.2, 710.0)}
EXP2_BOUNDS = {f32: (-254.0, 129.0), f64: (-2046.0, 1025.0)}
EXP_FTZ_BOUNDS = {f32: (-88.1, 0.0), f64: (-709.1, 0.0)}
EXP2_FTZ_BOUNDS = {f32: (-127.0, 0.0), f64: (-1023.0, 0.0)}
EXPM1_BOUNDS = {f32: (-18.0, 89.0), f64: (-38.0, 710.0)}
"""Arguments beyond which the result is constant: 0 (or -1 of expm1) below, infinite (or 1 of "ftz") above.

Where the lower one makes the result 0, a factor is 0: Intel's cores take 150 cycles for a product that underflows."""


EXP_ZERO = {f32: -104.0, f64: -745.2}
EXP2_ZERO = {f32: -150.0, f64: -1075.0}
"""Arguments below which the result rounds to 0."""


def minus_multiple_of_ln2(x: Expr, n: Expr, fraction: float = 1.0) -> Expr:
    """Return x - n fraction ln 2 to full accuracy; `fraction` is a power of two.  2 operations."""
    high, low = LN2[x.dtype]
    return fma(n, -fraction * low, fma(n, -fraction * high, x))


def exp(x: Expr) -> Expr:
    """e^x.

    Error 0.9 ulp in f32, 1.2 in f64.  Cost f32: 20 operations, f64: 26.
    """
    x = clamp(x, *EXP_BOUNDS[x.dtype])
    n, lower, upper = scaled_power_factors(x, LOG2_E)
    r = minus_multiple_of_ln2(x, n)
    return polynomial(r, (1, 1, *EXP[x.dtype])) * lower * upper


def exp2(x: Expr) -> Expr:
    """2^x, exact where x is an integer.

    Error 0.95 ulp in f32, 1.2 in f64.  Cost f32: 19 operations, f64: 25.
    """
    x = clamp(x, *EXP2_BOUNDS[x.dtype])
    n, lower, upper = scaled_power_factors(x, 1)
    return polynomial(x - n, (1, *EXP2[x.dtype])) * lower * upper


def bounded_for_scale(x: Expr, bound: float, degree: int) -> Expr:
    """Return `x`, or its minimum with `bound` if a polynomial of `degree` may be negative where r is far outside of its interval.

    Arguments that lose the bits of r are so large that 2^n is infinite; those of an even degree are positive everywhere, and `scale` of NaN
    by an infinite n is infinite.
    """
    return x if degree % 2 == 0 else min_keeping_nan(x, bound)


def scaled_exp(x: Expr) -> Expr:
    """e^x where `scale` is one instruction, with the bits of `exp`.

    Cost f32: 13 operations, f64: 21.

    The choice of 0 is free where instructions have masks, and spares Intel's cores 200 cycles for a result that underflows.
    """
    y = bounded_for_scale(x, EXP_BOUNDS[x.dtype][1], len(EXP[x.dtype]) + 1)
    n, _ = scaled_integer(y, LOG2_E)
    return where(x < EXP_ZERO[x.dtype], 0, scale(polynomial(minus_multiple_of_ln2(y, n), (1, 1, *EXP[x.dtype])), n))


def scaled_exp2(x: Expr) -> Expr:
    """2^x where `scale` is one instruction, with the bits of `exp2`.

    Cost f32: 12 operations, f64: 20.
    """
    y = bounded_for_scale(x, EXP2_BOUNDS[x.dtype][1], len(EXP2[x.dtype]))
    n, _ = scaled_integer(y, 1)
    return where(x < EXP2_ZERO[x.dtype], 0, scale(polynomial(y - n, (1, *EXP2[x.dtype])), n))


def exp_ftz(x: Expr) -> Expr:
    """e^x for x <= 0, such as the differences of a softmax from their maximum; results that are not normal may be 0.

    Error 0.9 ulp in f32, 1.2 in f64.  Cost f32: 16 operations, f64: 22.

    One factor scales the polynomial, where `exp` needs two.  Subnormal numbers are slow on some cores, here and in the sums
    and products that read them.
    """
    x = clamp(x, *EXP_FTZ_BOUNDS[x.dtype])
    n, power = scaled_power(x, LOG2_E)
    return polynomial(minus_multiple_of_ln2(x, n), (1, 1, *EXP[x.dtype])) * power


def exp2_ftz(x: Expr) -> Expr:
    """2^x for x <= 0; results that are not normal may be 0.

    Error 0.95 ulp in f32, 1.2 in f64.  Cost f32: 15 operations, f64: 21.
    """
    x = clamp(x, *EXP2_FTZ_BOUNDS[x.dtype])
    n, power = scaled_power(x, 1)
    return polynomial(x - n, (1, *EXP2[x.dtype])) * power


def expm1(x: Expr) -> Expr:
    """e^x - 1.

    Error 1.5 ulp in f32, 2.2 in f64.  Cost f32: 22 operations, f64: 26.

    2^n p + (2^n - 1) with p = e^r - 1, computed as twice its half so that 2^n does not overflow.  If n = 0 this is p itself,
    which must not be halved: it may be denormal.
    """
    y = clamp(x, *EXPM1_BOUNDS[x.dtype])
    n, half = scaled_power(y, LOG2_E, extra=-1)
    r = minus_multiple_of_ln2(y, n)
    p = fma(r * r, polynomial(r, EXPM1[x.dtype]), r)
    return copysign(where(n.eq(0), p, fma(p, half, half - 0.5) * 2), x)
