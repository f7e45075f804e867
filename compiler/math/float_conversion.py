"""Conversion between f32 and floats that are held as codes, as integer arithmetic; exact, or rounded to nearest even."""

from __future__ import annotations

from functools import lru_cache

from compiler.ir.scalar import Expr, Ref, call_primitive, const, minimum, where
from compiler.ir.types import DTYPES, DType, f32, i32

INFINITY_BITS = 0x7F800000
"""Bits of infinity in f32."""


def _shift_right(x: Expr, count: int) -> Expr:
    return call_primitive("lshr", x, count)


@lru_cache
def widened(source: DType) -> Expr:
    """Return the f32 value of the float `x` of `source`, a format of 8 bits.

    The fields of the code are put where f32 has them.  Multiplication by a power of two corrects the exponent, and makes
    normal numbers of subnormal ones.
    """
    f = source.float_format
    shift, magnitude_mask = 23 - f.mantissa_bits, f.sign - 1
    code = Ref(source, "x").bitcast(DTYPES[f"i{source.bits}"]).to(i32)
    bits = code << shift & (magnitude_mask << shift) - (1 << 31)
    value = bits.bitcast(f32) * 2.0 ** (127 - f.bias)
    nonfinite = (bits | INFINITY_BITS).bitcast(f32)
    return where(code & magnitude_mask < f.nonfinite, value, nonfinite)


@lru_cache
def narrowed(target: DType) -> Expr:
    """Return the float of `target` that is nearest to the f32 value `x`; NaN becomes quiet.

    Adding `unit`, whose last place is the smallest subnormal of `target`, rounds subnormal results.
    """
    f = target.float_format
    bits, shift = Ref(f32, "x").bitcast(i32), 23 - f.mantissa_bits
    magnitude = bits & 0x7FFFFFFF
    upper = _shift_right(magnitude, shift)
    rounded = _shift_right(magnitude + (upper & 1) + ((1 << shift >> 1) - 1), shift)
    normal = minimum(rounded - (127 - f.bias << f.mantissa_bits), f.overflow)
    unit = const(2.0 ** (24 - f.bias - f.mantissa_bits), f32)
    subnormal = (magnitude.bitcast(f32) + unit).bitcast(i32) - (151 - f.bias - f.mantissa_bits << 23)
    code = where(magnitude < 128 - f.bias << 23, subnormal, normal)
    payload = upper & ((1 << f.mantissa_bits) - 1)
    nan = payload | (f.nonfinite | 1 << f.mantissa_bits >> 1)
    code = where(magnitude > INFINITY_BITS, nan, code)
    code = code | (_shift_right(bits, 32 - target.bits) & f.sign)
    return code.to(DTYPES[f"i{target.bits}"]).bitcast(target)
