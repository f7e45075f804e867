"""Argument reduction by multiples of pi/2: for moderate arguments, and for those of any size.

Cody and Waite subtract the multiple in parts (Software Manual for the Elementary Functions, 1980).

For each exponent of x, few bits of 2 / pi are needed (Payne and Hanek, "Radian reduction for trigonometric functions",
SIGNUM Newsletter 18, 1983).  Bits so high that x times them is a multiple of 4 only add full turns; bits so low that x times
them is negligible against the smallest possible result are not needed.  `where` selects the bits by the same operations for
all arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.ir.scalar import Expr, const, fma, round_even, where
from compiler.ir.types import f32, f64, i32
from compiler.math.binary import format_of, scaled_integer
from compiler.math.pi import digits_of_two_over_pi, half_pi_parts, scaled_two_over_pi
from compiler.math.sums import two_product, two_sum

HALF_PI = half_pi_parts(53, 2)  # high and low part

MODERATE = {f32: 2.0**17, f64: 2.0**30}
"""Arguments below are moderate: the multiple of the first part of pi/2 is subtracted exactly, and what no part holds is negligible."""


def reduce_moderate(x: Expr) -> tuple[Expr, Expr]:
    """Return r, of the dtype of x, and the quadrant, an integer of its size modulo 4, of 0 <= x < `MODERATE`.

    x = (quadrant + 4 k) pi/2 + r, and |r| is at most pi/4 up to rounding.  5 operations.
    """
    n, bits = scaled_integer(x, 2 / math.pi)
    for part in half_pi_parts(format_of(x).mantissa_bits + 1, 3):
        x = fma(n, -part, x)
    return x, bits


def reduce_by_half_pi(x: Expr) -> tuple[Expr, Expr]:
    """Return r, an f64, and the quadrant, an i32 modulo 4, of x >= 0: x = (quadrant + 4 k) pi/2 + r.

    |r| is at most pi/4 up to rounding, and r is NaN for an infinite x.  Cost f32: 28 operations, 13 of them in f64; f64: 149.
    """
    return _reduce_by_half_pi_f32(x) if x.dtype == f32 else _reduce_by_half_pi_f64(x)


def _reduce_by_half_pi_f32(x: Expr) -> tuple[Expr, Expr]:
    """Reduce f32 x >= 0: x = y 2^(21 k), y < 2^44, times T = 2^(21 k) 2/pi modulo 4 as a sum of two doubles.

    For k > 0, y is an integer, so that T may be taken modulo 4.  The error of y T is at most 2^-63, and no f32 is nearer than
    2^-31 to a multiple of pi/2.
    """
    step = 21  # 2^128 = 2^(44 + 4 * 21)
    scale: Expr = const(1.0, f32)
    parts: list[Expr] = [const(part, f64) for part in scaled_two_over_pi(0)]
    for k in (1, 2, 3, 4):
        large = x >= 2.0 ** (23 + step * k)
        scale = where(large, 2.0 ** (-step * k), scale)
        parts = [where(large, new, old) for new, old in zip(scaled_two_over_pi(step * k), parts)]
    high, low = parts
    y = (x * scale).to(f64)
    n, bits = scaled_integer(y, high)
    return fma(y, low, fma(y, high, -n)) * HALF_PI[0], bits.to(i32)


DIGIT_BITS = 53
"""Bits of a digit of 2/pi: as many as a double holds."""
ACTIVE_DIGITS = 5
"""Digits needed for one x: 53 bits of x, 53 of the result, 61 of cancellation and up to 53 of misalignment."""


def _reduce_by_half_pi_f64(x: Expr) -> tuple[Expr, Expr]:
    """Reduce f64 x >= 0: x = y 2^(53 k), y < 2^54, times five digits of 2/pi from the k-th on.

    The products y d0, y d1 2^-53 ... are exact to 2^-115, and no double is nearer than 2^-61 to a multiple of pi/2.  They are
    reduced modulo 4 and added with compensation for rounding errors.
    """
    y, digits = _select_digits(x)
    products = [two_product(y * 2.0 ** (-DIGIT_BITS * i), d) for i, d in enumerate(digits)]
    (p0, e0), (p1, e1), (p2, e2), (p3, e3), (p4, _) = products
    top_terms = [_modulo_4(p0) + _modulo_4(e0), _modulo_4(p1), e1, p2]  # the first two are far from rounding
    top, errors = _compensated_sum(top_terms)
    n, bits = scaled_integer(top, 1)
    middle, errors = _compensated_sum([top - n, *errors, e2, p3])
    low = sum(errors, e3) + p4
    r = fma(middle, HALF_PI[0], fma(middle, HALF_PI[1], low * HALF_PI[0]))
    return where(x < 2.0**-30, x, r), bits  # a denormal x would have lost bits


def _select_digits(x: Expr) -> tuple[Expr, list[Expr]]:
    """Return y and its digits, finding k bit by bit: each step halves the number of candidates for the first digit."""
    last = 19  # the largest k: 2^1024 = 2^(17 + 53 * 19)
    digits: list[Expr] = [const(d, f64) for d in (0.0, *digits_of_two_over_pi(last + ACTIVE_DIGITS - 1, DIGIT_BITS))]
    y = x
    for step in (16, 8, 4, 2, 1):
        large = y >= 2.0 ** (DIGIT_BITS * step + 1)
        y = where(large, y * 2.0 ** (-DIGIT_BITS * step), y)
        shifted = digits[step:]
        candidates = enumerate(digits[: step - 1 + ACTIVE_DIGITS])
        digits = [where(large, shifted[i], d) if i < len(shifted) else d for i, d in candidates]
    return y, digits


def _modulo_4(x: Expr) -> Expr:
    """Return `x` minus the nearest multiple of 4, exactly.  3 operations."""
    return fma(round_even(x * 0.25), -4.0, x)


def _compensated_sum(terms: Sequence[Expr]) -> tuple[Expr, list[Expr]]:
    """Return the rounded sum of `terms` and the rounding error of each addition.  6 operations per addition."""
    total, *others = terms
    errors: list[Expr] = []
    for term in others:
        total, error = two_sum(total, term)
        errors.append(error)
    return total, errors
