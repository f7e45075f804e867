"""Bits of 2 / pi to any precision, computed on first use."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import frexp

PI_BITS = 256
"""Bits of 2 / pi from which parts of pi / 2 are computed."""


def _arctangent_of_inverse(n: int, one: int) -> int:
    """Return atan(1 / n) in units of 1 / one, by its power series."""
    power = total = one // n
    divisor = sign = 1
    while power:
        power //= n * n
        divisor += 2
        sign = -sign
        total += sign * (power // divisor)
    return total


@cache
def two_over_pi(bits: int) -> int:
    """Return floor(2^bits * 2 / pi), by Machin's formula: pi / 4 = 4 atan(1/5) - atan(1/239)."""
    one = 1 << (bits + 32)  # 32 bits more than the rounding of a thousand terms can reach
    pi = 4 * (4 * _arctangent_of_inverse(5, one) - _arctangent_of_inverse(239, one))
    return (2 * one << bits) // pi


@cache
def half_pi_parts(bits: int, count: int) -> tuple[float, ...]:
    """Return `count` floats of `bits` bits whose sum is pi / 2: each is what those before leave, rounded."""
    rest, parts = Fraction(1 << 2 * PI_BITS, two_over_pi(PI_BITS)) / (1 << PI_BITS), list[float]()
    for _ in range(count):
        unit = Fraction(2) ** (frexp(rest)[1] - bits)
        parts.append(float(round(rest / unit) * unit))
        rest -= Fraction(parts[-1])
    return tuple(parts)


def digits_of_two_over_pi(count: int, bits: int) -> list[float]:
    """Return the first `count` digits of 2 / pi in base 2^bits, as floats."""
    scaled = two_over_pi(count * bits)
    return [float((scaled >> bits * (count - 1 - i)) & ((1 << bits) - 1)) for i in range(count)]


def scaled_two_over_pi(shift: int) -> tuple[float, float]:
    """Return 2^shift * 2 / pi minus the nearest multiple of 4, as a sum of two doubles (to 2^-106)."""
    bits = 192 + shift
    unit = 1 << (bits - shift)
    reduced = Fraction((two_over_pi(bits) + 2 * unit) % (4 * unit) - 2 * unit, unit)
    high = float(reduced)
    return high, float(reduced - Fraction(high))
