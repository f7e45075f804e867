"""Trigonometric functions of all finite arguments: sin, cos and tan.

    x = (q + f) pi/2 with an integer q and |f| <= 1/2;  r = f pi/2

The quadrant q selects sin r or cos r and the sign (see argument_reduction.py).  The polynomials are minimax fits on |r| <= pi/4,
as in exponential.py.  Code for arguments that are not moderate is branched around where a vector has none; costs are without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr, absolute, fma, where, where_unlikely
from compiler.ir.types import DType, f32, f64
from compiler.math.argument_reduction import MODERATE, reduce_by_half_pi, reduce_moderate
from compiler.math.binary import bits_of, format_of

SIN = {
    f32: (-0.16666655, 0.008332189, -0.0001951829),
    f64: (
        -0.1666666666666663, 0.00833333333332184, -0.00019841269829358457, 2.7557313538471895e-06, -2.5050734381045145e-08,
        1.589543277169162e-10,
    ),
}  # fmt: skip
"""(sin r - r) / r^3 in r^2: sin r to 2^-27.9 (degree 2) and 2^-57.9 (degree 5)."""

COS = {
    f32: (-0.5, 0.041666646, -0.001388731, 2.4432327e-05),
    f64: (
        -0.5, 0.041666666666666595, -0.0013888888888873342, 2.4801587289002093e-05, -2.75573142170471e-07,
        2.087570539772969e-09, -1.1358749357725145e-11,
    ),
}  # fmt: skip
"""(cos r - 1) / r^2 in r^2, the first coefficient given: cos r to 2^-33.0 (degree 3) and 2^-63.9 (degree 6)."""

F32_SIN_IN_F64 = (-0.16666654722438198, 0.008332165803972644, -0.00019515815213257327)
F32_COS_IN_F64 = (-0.5, 0.04166664568292435, -0.0013887316251203553, 2.443315661392863e-05)
"""The same for f32 computed in f64: sin r to 2^-28.0, cos r to 2^-33.0."""


def _sin_and_cos(r: Expr, sin_coefficients: Sequence[float], cos_coefficients: Sequence[float]) -> tuple[Expr, Expr]:
    """Return sin r and cos r for |r| <= pi/4."""
    square = r * r
    sine = fma(square * r, polynomial(square, sin_coefficients), r)
    return sine, fma(square, polynomial(square, cos_coefficients), 1.0)


def _negate_if(y: Expr, sign: Expr) -> Expr:
    """Flip the sign bit of `y` if that of the integer `sign` is set; its other bits are 0."""
    return (y.bitcast(sign.dtype) ^ sign).bitcast(y.dtype)


def _sign(x: Expr) -> Expr:
    """Return the sign bit of `x`; all other bits are 0."""
    return bits_of(x) & -format_of(x).sign


def _is_odd(quadrant: Expr) -> Expr:
    return (quadrant & 1).ne(0)


def _second_bit_as_sign(quadrant: Expr) -> Expr:
    return (quadrant & 2) << (quadrant.dtype.bits - 2)


def _of_reduced(x: Expr, function: Callable[[Expr, Expr], Expr], dtype: DType) -> Expr:
    """Return `function` of r and quadrant of |x|; moderate ones are reduced in `dtype`."""
    size = absolute(x)
    large, usual = (function(*reduced) for reduced in (reduce_by_half_pi(size), reduce_moderate(size.to(dtype))))
    return where_unlikely(size >= MODERATE[x.dtype], large, usual)


def sin(x: Expr) -> Expr:
    """sin x.

    Error 1.6 ulp in f32, 1.5 in f64.  Cost f32: 25 operations, f64: 31.
    """

    def of_reduced(r: Expr, quadrant: Expr) -> Expr:
        sine, cosine = _sin_and_cos(r.to(x.dtype), SIN[x.dtype], COS[x.dtype])
        return _negate_if(where(_is_odd(quadrant), cosine, sine), _sign(x) ^ _second_bit_as_sign(quadrant))

    return _of_reduced(x, of_reduced, x.dtype)


def cos(x: Expr) -> Expr:
    """cos x.

    Error 1.6 ulp in f32, 1.5 in f64.  Cost f32: 24 operations, f64: 30.
    """

    def of_reduced(r: Expr, quadrant: Expr) -> Expr:
        sine, cosine = _sin_and_cos(r.to(x.dtype), SIN[x.dtype], COS[x.dtype])
        return _negate_if(where(_is_odd(quadrant), sine, cosine), _second_bit_as_sign(quadrant + 1))

    return _of_reduced(x, of_reduced, x.dtype)


def tan(x: Expr) -> Expr:
    """tan x, the quotient of sine and cosine; for f32 in f64, whose three roundings are negligible.

    Error 0.6 ulp in f32, 3.2 in f64.  Cost f32: 27 operations, f64: 31, one of them a division.
    """

    def of_reduced(r: Expr, quadrant: Expr) -> Expr:
        sine, cosine = _sin_and_cos(r, *((F32_SIN_IN_F64, F32_COS_IN_F64) if x.dtype == f32 else (SIN[f64], COS[f64])))
        odd = _is_odd(quadrant)
        y = where(odd, -cosine, sine) / where(odd, sine, cosine)
        return _negate_if(y.to(x.dtype), _sign(x))

    return _of_reduced(x, of_reduced, f64)
