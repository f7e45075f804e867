"""NumPy implementations of the scalar primitives that NumPy has no function for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def erf(x: Any) -> Any:
    """Return the error function of each element."""
    return np.vectorize(math.erf, otypes=[np.result_type(x)])(x) if np.size(x) else x


def exp_ftz(x: Any, power: Callable[[Any], Any] = np.exp) -> Any:
    """Return e^x, or another `power`; 0 where it is no normal number of f32 or wider."""
    wide = power(np.asarray(x, np.result_type(x, np.float32)))
    return np.where(wide < np.finfo(wide.dtype).tiny, 0, wide).astype(np.result_type(x))


def exp2_ftz(x: Any) -> Any:
    """Return 2^x; 0 where it is no normal number of f32 or wider."""
    return exp_ftz(x, np.exp2)


def scale(x: Any, n: Any) -> Any:
    """Return x * 2^n, rounded once; NaN where n is NaN.  NaN times an infinite power is that power."""
    exponent = np.nan_to_num(np.clip(n, -5000, 5000)).astype(np.int32)
    known = np.where(np.isnan(x) & np.isinf(n), 1, x)
    return np.where(np.isnan(n), n, np.ldexp(known, exponent)).astype(np.result_type(x))


def divide(x: Any, y: Any) -> Any:
    """Divide; integers truncate toward zero, and x / 0 is x."""
    if np.issubdtype(np.result_type(x), np.floating):
        return np.divide(x, y)
    quotient = np.floor_divide(x, y)
    toward_zero = quotient + ((np.remainder(x, y) != 0) & ((x < 0) != (y < 0))).astype(np.result_type(x))
    return np.where(np.equal(y, 0), x, toward_zero)


def fma(x: Any, y: Any, z: Any) -> Any:
    """Return x y + z, rounded once for floats."""
    if np.result_type(x) in (np.float16, np.float32):
        wide = np.multiply(x, y, dtype=np.float64) + np.asarray(z, np.float64)
        return wide.astype(np.float32).astype(np.result_type(x))
    return fma_f64(x, y, z) if np.result_type(x) == np.float64 else x * y + z


def fma_f64(x: Any, y: Any, z: Any) -> Any:
    """Compute x y + z with one rounding (except for ties): Dekker's product with Veltkamp splitting, Knuth's TwoSum."""
    (x_part, x_exponent), (y_part, y_exponent) = np.frexp(x), np.frexp(y)  # products of fractions cannot overflow
    exponent = x_exponent + y_exponent
    product, addend = x_part * y_part, np.ldexp(z, -exponent)
    x_high, y_high = (a * 134217729.0 - (a * 134217729.0 - a) for a in (x_part, y_part))
    x_low, y_low = x_part - x_high, y_part - y_high
    error = x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
    total = product + addend
    back = total - product
    error = error + ((product - (total - back)) + (addend - back))
    result = np.ldexp(total + error, exponent)
    is_ordinary = np.isfinite(total) & np.isfinite(error) & (result != 0)  # else x * y + z is exact or special
    return np.where(is_ordinary, result, x * y + z)


def shift_right_logical(x: Any, y: Any) -> Any:
    """Shift right, with zeros from the left."""
    x = np.asarray(x)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.right_shift(x.view(unsigned), np.asarray(y).astype(unsigned)).view(x.dtype)
