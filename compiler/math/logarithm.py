"""Logarithms: log, log2 and log1p.

    x = 2^e (1 + f),  1 + f in [sqrt(1/2), sqrt(2)),  log x = e ln 2 + log(1 + f)

The sum is never smaller than its second term, so nothing cancels.  Denormal arguments are scaled first.
"""

from __future__ import annotations

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, const, copysign, fma, where
from compiler.ir.types import f32, f64
from compiler.math.binary import INF, NAN, bits_of, format_of
from compiler.math.exponential import LOG2_E

LN2 = 0.6931471805599453  # the errors of its float and double are a sixteenth and a fifth of an ulp
SQRT_HALF_BITS = {f32: 0x3F3504F3, f64: 0x3FE6A09E667F3BCD}

LOG = {
    f32: (
        -0.5, 0.3333333, -0.25000823, 0.20001261, -0.16623327, 0.14200945, -0.13159631, 0.12766679, -0.076419376,
    ),
    f64: (
        -0.5, 0.3333333333333314, -0.24999999999987968, 0.20000000000067025, -0.16666666669827931, 0.1428571428003913,
        -0.12499999691231202, 0.11111111150692987, -0.10000015217952177, 0.09090923829299222, -0.08332913163222842,
        0.07691531635487894, -0.07149446817097838, 0.06684572024063012, -0.06196595174372601, 0.056684404484809534,
        -0.05678297655733961, 0.06503641579317085, -0.05980394860343029, 0.026137972587598982,
    ),
}  # fmt: skip
"""(log(1+f) - f) / f^2 on 1 + f in [sqrt(1/2), sqrt(2)], Remez with the first coefficient given: log(1+f) to 2^-27.3
(degree 8) and 2^-55.6 (degree 19)."""


def split_exponent(x: Expr) -> tuple[Expr, Expr]:
    """Return the integer e of a normal x = 2^e m, m in [sqrt(1/2), sqrt(2)), and e << fraction bits.  3 operations."""
    form = format_of(x)
    e = (bits_of(x) - SQRT_HALF_BITS[x.dtype]) >> form.mantissa_bits
    return e, e << form.mantissa_bits


def exponent_and_fraction(x: Expr) -> tuple[Expr, Expr]:
    """Return e (as a float) and f of x = 2^e (1 + f), for finite x > 0.  10 operations."""
    form = format_of(x)
    denormal = x < form.tiny
    x = where(denormal, x * 2.0**form.mantissa_bits, x)
    e, e_bits = split_exponent(x)
    m = (bits_of(x) - e_bits).bitcast(x.dtype)
    return e.to(x.dtype) - where(denormal, const(form.mantissa_bits, x.dtype), 0), m - 1


def log_near_1(f: Expr) -> Expr:
    """log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)]; -0 for -0."""
    return fma(f * f, polynomial(f, LOG[f.dtype]), f)


def with_special_cases(x: Expr, y: Expr) -> Expr:
    """Return `y`, or the logarithm of `x` if it is 0, infinite, negative or NaN.  6 operations."""
    return where(x > 0, where(x < INF, y, x), where(x.eq(0), const(-INF, x.dtype), NAN))


def log(x: Expr) -> Expr:
    """ln x.

    Error 1.0 ulp in f32, 1.4 in f64.  Cost f32: 28 operations, f64: 40.
    """
    e, f = exponent_and_fraction(x)
    return with_special_cases(x, fma(e, LN2, log_near_1(f)))


def log2(x: Expr) -> Expr:
    """log2 x, exact for powers of two.

    Error 1.8 ulp in f32, 1.7 in f64.  Cost f32: 28 operations, f64: 40.
    """
    e, f = exponent_and_fraction(x)
    return with_special_cases(x, fma(log_near_1(f), LOG2_E, e))


def log1p(x: Expr) -> Expr:
    """ln(1 + x).

    Error 1.5 ulp in f32, 2.0 in f64.  Cost f32: 27 operations, f64: 39.

    u = 1 + x, rounded, only determines e.  Then f = 2^-e x + (2^-e - 1) is rounded once, so that a small x loses no bits.
    2^-e is doubled until the end, because it may be denormal.
    """
    form = format_of(x)
    u = 1 + x
    e, e_bits = split_exponent(u)
    scaled = (bits_of(x) - e_bits).bitcast(x.dtype)  # x itself if e = 0, else not denormal
    twice = (form.power_code(1) - e_bits).bitcast(x.dtype)
    f = scaled + fma(twice, 0.5, -1.0)
    y = fma(e.to(x.dtype), LN2, log_near_1(f))
    return with_special_cases(u, copysign(y, x))
