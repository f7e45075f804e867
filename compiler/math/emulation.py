"""Operations on floats in terms of others, for targets that would call the C library for each number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from compiler.ir.scalar import Expr, Ref, absolute, const, copysign, where
from compiler.ir.types import DType, f32, f64

Emulation = Callable[[DType], Expr | None]
"""Returns an operation on the values `x`, `y` and `z` of a dtype; None if nothing is faster than the library."""


@lru_cache
def fused_multiply_add(dtype: DType) -> Expr | None:
    """Return `x * y + z` of f32, computed in f64.  The product is exact there; the sum is rounded to f64, then to f32."""
    if dtype != f32:
        return None
    x, y, z = (Ref(f32, name).to(f64) for name in "xyz")
    return (x * y + z).to(f32)


def nearest(x: Expr) -> Expr:
    """Return the integer nearest to `x`, ties to even, with the sign of `x`: larger numbers than 2^23 (f64: 2^52) have no fraction."""
    whole = const(2.0 ** (23 if x.dtype == f32 else 52), x.dtype)
    shift = copysign(whole, x)
    return where(absolute(x) < whole, copysign(x + shift - shift, x), x)


@lru_cache
def rounded(dtype: DType) -> Expr:
    """Return the integer nearest to `x`, ties to even."""
    return nearest(Ref(dtype, "x"))


@lru_cache
def floor(dtype: DType) -> Expr:
    """Return the largest integer that is at most `x`."""
    x = Ref(dtype, "x")
    return copysign(below(x), x)


def below(x: Expr) -> Expr:
    """Return the largest integer that is at most `x`; the sign of zero is either."""
    n = nearest(x)
    return where(n > x, n - 1.0, n)


@lru_cache
def ceil(dtype: DType) -> Expr:
    """Return the least integer that is at least `x`."""
    x = Ref(dtype, "x")
    n = nearest(x)
    return copysign(where(n < x, n + 1.0, n), x)


@lru_cache
def trunc(dtype: DType) -> Expr:
    """Return `x` without its fraction."""
    x = Ref(dtype, "x")
    return copysign(below(absolute(x)), x)


EMULATIONS: Mapping[str, Emulation] = {
    "fma": fused_multiply_add,
    "round": rounded,
    "floor": floor,
    "ceil": ceil,
    "trunc": trunc,
}
"""Operations by the name of the primitive."""
