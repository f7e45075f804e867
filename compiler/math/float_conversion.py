"""Conversion between f32 and floats that are held as codes, as integer arithmetic; exact, or rounded to nearest even."""

from __future__ import annotations

from functools import lru_cache

from compiler.ir.scalar import Expr, Ref, call_primitive, const, minimum, where
from compiler.ir.types import DTYPES, DType, f16, f32, i16, i32

INFINITY_BITS = 0x7F800000
"""Bits of infinity in f32."""


def _shift_right(x: Expr, count: int) -> Expr:
    return call_primitive("lshr", x, count)


@lru_cache
def widened(source: DType) -> Expr:
    """Return the f32 value of the float `x` of `source`, which f16 can hold but for a power of two.

    Targets convert f16 to f32 in one instruction, subnormals included.
    """
    f = source.float_format
    assert max(f.exponent_bits + 5, f.mantissa_bits) <= 10, source
    code = Ref(source, "x").bitcast(DTYPES[f"i{source.bits}"]).to(i16)
    magnitude = code & (f.sign - 1)
    half = magnitude << (10 - f.mantissa_bits)
    if not f.has_infinities or f.exponent_bits < 5:
        half = where(magnitude < f.nonfinite, half, half | 0x7C00)
    value = (half | (code & f.sign) << (16 - source.bits)).bitcast(f16).to(f32)
    return value * 2.0 ** (15 - f.bias) if f.bias < 15 else value


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
