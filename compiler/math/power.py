"""Powers: rsqrt and pow."""

from __future__ import annotations

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, absolute, const, copysign, fma, invert, round_even, sqrt, where
from compiler.ir.types import f32, f64, i64
from compiler.math.binary import INF, NAN, clamp, scaled_power, scaled_power_factors
from compiler.math.exponential import EXP2, LOG2_E
from compiler.math.logarithm import exponent_and_fraction, split_exponent
from compiler.math.sums import fast_two_sum, two_product

SHORT_LOG2 = (
    -0.7213475207548317, 0.4808983572111029, -0.36067368563073576, 0.28853753855860076, -0.2404529357326136,
    0.20616936423790377, -0.1802995563332363, 0.15883507789380058, -0.14322065285668395, 0.14449156835506605,
    -0.14242165028900974, 0.07730927601666268,
)  # fmt: skip
"""(log2(1+f) - f / ln 2) / f^2 on 1 + f in [sqrt(1/2), sqrt(2)], minimax: log2(1+f) to 2^-35.7, for f32 computed in f64."""
SHORT_EXP2 = (
    0.6931471807045635, 0.2402265106656298, 0.055504103659572396, 0.009618038132139769, 0.0013333935060600565,
    0.0001546675628413901, 1.5196158191458778e-05,
)  # fmt: skip
"""(2^r - 1) / r on |r| <= 1/2, minimax: 2^r to 2^-34.3, for f32 computed in f64."""

C0 = (2.8853900817779268, 4.0710547481862066e-17)  # 2 / ln 2, high and low part
C1 = (0.9617966939259756, 5.0577616648125907e-17)
LOG2_REST = (
    0.5770780163555909, 0.412198583103126, 0.3205989005036674, 0.26230784102752747, 0.2219780959567697,
    0.19138231822402973, 0.18928460544298956,
)  # fmt: skip
"""log2((1+s) / (1-s)) = s (C0 + C1 s^2 + s^4 (LOG2_REST in s^2)), to 2^-65.6 for s <= 0.17158, for f64."""


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x).

    Error 1.5 ulp in f32, 1.5 in f64.  Cost f32: 2 operations, f64: 2.
    """
    return 1 / sqrt(x)


def pow_(x: Expr, y: Expr) -> Expr:
    """x^y, with the special cases of C and IEEE 754.

    Error 0.6 ulp in f32, 1.3 in f64.  Cost f32: 65 operations, f64: 113; in f32 more than half of them are in f64.

    |x|^y = 2^(y log2 |x|).  The logarithm needs more bits than the result, by as many as the result's exponent has.
    """
    a = absolute(x)
    magnitude = _magnitude_f32(a, y) if x.dtype == f32 else _magnitude_f64(a, y)
    magnitude = where(a.eq(1) | y.eq(0), 1, magnitude)
    integer = round_even(y).eq(y)  # also true for infinities, which count as even
    odd = integer & (round_even(y * 0.5) * 2).ne(y)
    undefined = (x < 0) & (x > -INF) & invert(integer)
    return where(undefined, NAN, where(odd, copysign(magnitude, x), magnitude))


def _magnitude_f32(x: Expr, y: Expr) -> Expr:
    """x^y for f32 x >= 0, computed in f64, where every f32 and every result before rounding to f32 is normal."""
    wide = x.to(f64)
    e, e_bits = split_exponent(wide)
    f = (wide.bitcast(i64) - e_bits).bitcast(f64) - 1
    log2 = fma(f * f, polynomial(f, SHORT_LOG2), fma(f, LOG2_E, e.to(f64)))
    z = clamp(y.to(f64) * _log2_with_special_cases(wide, log2), -200.0, 200.0)
    n, scale = scaled_power(z, 1)
    return (polynomial(z - n, (1, *SHORT_EXP2)) * scale).to(f32)


def _magnitude_f64(x: Expr, y: Expr) -> Expr:
    """x^y for f64 x >= 0, with the logarithm and its product with y as sums of two doubles."""
    log2, log2_low = _log2_double_double(x)
    log2 = _log2_with_special_cases(x, log2)
    z, z_low = two_product(y, log2)
    z_low = fma(y, log2_low, z_low)
    z_low = where(absolute(z) < 1100, z_low, 0)  # beyond, the result is 0 or infinite and z_low may be inf - inf
    z = clamp(z, -1100.0, 1100.0)
    n, lower, upper = scaled_power_factors(z, 1)
    return polynomial((z - n) + z_low, (1, *EXP2[f64])) * lower * upper


def _log2_with_special_cases(x: Expr, log2: Expr) -> Expr:
    """Return `log2`, or the logarithm of `x` if it is 0, infinite or NaN."""
    return where(x < INF, where(x > 0, log2, -INF), x)


def _log2_double_double(x: Expr) -> tuple[Expr, Expr]:
    """Return log2 x for finite x > 0 to 2^-65, as a sum of two doubles.

    With s = f / (2 + f), log2(1 + f) = s (C0 + C1 s^2 + s^4 Q(s^2)), where double precision suffices for Q only.
    """
    e, f = exponent_and_fraction(x)
    bottom, bottom_low = fast_two_sum(const(2.0, f64), f)
    inverse = 1 / bottom
    s = f * inverse
    s_low = fma(-s, bottom_low, fma(-s, bottom, f)) * inverse
    square, square_low = two_product(s, s)
    square_low = fma(s * 2, s_low, square_low)
    c, c_low = fast_two_sum(const(C1[0], f64), square * polynomial(square, LOG2_REST))
    c, c_low = _multiply_double_double((square, square_low), (c, c_low + C1[1]))
    c, c_low = _add_double_double(const(C0[0], f64), c, c_low + C0[1])
    fraction, fraction_low = _multiply_double_double((s, s_low), (c, c_low))
    return _add_double_double(e, fraction, fraction_low)


def _add_double_double(a: Expr, b: Expr, b_low: Expr) -> tuple[Expr, Expr]:
    """Return a + (b + b_low) as a sum of two doubles, for a = 0 or |a| >= |b|.  4 operations."""
    total, error = fast_two_sum(a, b)
    return total, error + b_low


def _multiply_double_double(a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """Return the product of two sums of two doubles, as a sum of two doubles.  4 operations."""
    high, error = two_product(a[0], b[0])
    return high, fma(a[0], b[1], fma(a[1], b[0], error))
