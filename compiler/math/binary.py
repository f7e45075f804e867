"""Bit operations on binary floating-point numbers: powers of two, rounding to integers, clamping.

They replace conversions between floats and integers, which are slow on some machines and undefined beyond the integers'
range.  All rest on one fact: a float in [2^f, 2^(f+1)), where f is the number of fraction bits, has a last place of 1.
So adding M = 1.5 * 2^f to a small x rounds x to an integer (to nearest, ties to even), and the low bits of the sum *are*
that integer in two's complement (Muller, "Elementary Functions", 3rd ed., 11.1).
"""

from __future__ import annotations

import math

from compiler.ir.float_format import FloatFormat
from compiler.ir.scalar import Expr, Number, fma, where
from compiler.ir.types import f32, f64, i32, i64

INF = math.inf
NAN = math.nan


INTEGERS = {f32: i32, f64: i64}
"""Integers of the same width, which hold the bits of a float."""


def format_of(x: Expr) -> FloatFormat:
    """Return the format of `x`; raises TypeError unless it is f32 or f64."""
    if x.dtype not in INTEGERS:
        raise TypeError(f"elementary functions expand in f32 and f64, not in {x.dtype}; cast the argument first")
    return x.dtype.float_format


def bits_of(x: Expr) -> Expr:
    """Return the bits of `x` as an integer."""
    return x.bitcast(INTEGERS[x.dtype])


def min_keeping_nan(x: Expr, bound: Number) -> Expr:
    """Return min(x, bound), and NaN for NaN: one instruction on x86, where a NaN-propagating minimum takes three."""
    return where(x > bound, bound, x)


def clamp(x: Expr, low: Number, high: Number) -> Expr:
    """Clamp `x` to [low, high]; NaN stays NaN."""
    return min_keeping_nan(where(x < low, low, x), high)


def scaled_integer(x: Expr, scale: Expr | Number, offset: int = 0) -> tuple[Expr, Expr]:
    """Return n = round(scale x) as a float, and bits whose low end is the integer n + offset.

    For |n| + |offset| < 2^(fraction bits - 1).  2 operations.  Only the product is rounded, so n is off by one only near ties.
    """
    magic = 1.5 * 2.0 ** format_of(x).mantissa_bits + offset  # M in the module's docstring
    shifted = x + magic if isinstance(scale, int) and scale == 1 else fma(x, scale, magic)
    return shifted - magic, bits_of(shifted)


def scaled_power(x: Expr, scale: Number, extra: int = 0) -> tuple[Expr, Expr]:
    """Return n = round(scale x) and 2^(n + extra), which must be a normal number.  3 operations."""
    form = format_of(x)
    n, bits = scaled_integer(x, scale, form.bias + extra)
    return n, (bits << form.mantissa_bits).bitcast(x.dtype)


def scaled_power_factors(x: Expr, scale: Number) -> tuple[Expr, Expr, Expr]:
    """Return n = round(scale x) and two factors whose product is 2^n, for twice the range of normal exponents.

    Multiplying by one after the other overflows and underflows correctly: the first product is exact, the second rounds once.
    6 operations.
    """
    form = format_of(x)
    n, bits = scaled_integer(x, scale, 2 * form.bias)
    mask = form.power_code(form.bias + 1)  # all bits of the exponent
    lower = (bits << (form.mantissa_bits - 1)) & mask  # 2^floor(n/2)
    upper = (bits << form.mantissa_bits) - lower
    return n, lower.bitcast(x.dtype), upper.bitcast(x.dtype)
