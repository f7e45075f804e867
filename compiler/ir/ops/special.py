"""Special functions: complementary error functions and integer powers."""

from __future__ import annotations

from functools import reduce

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import FLOATS, binary, unary
from compiler.ir.scalar import Expr

_ERFCX_CHEBYSHEV = (
    0.5770337386164697, 0.3554369212704985, 0.06509515882878653, 0.003671142395836639, -0.0011128447433526325,
    -0.0001607582991537808, 3.278031574173137e-05, 5.442441645505016e-06, -1.5154665553171482e-06, -1.4297608181169865e-07,
    8.234608827419493e-08, -1.2962846852306563e-09, -4.154721631015199e-09, 6.347058278362811e-10, 1.4320822712256245e-10,
    -6.16039010520463e-11, 2.061213855471802e-12, 3.5714931488535196e-12, -8.586422843428756e-13, -6.145600213214859e-14,
    7.418725764717141e-14, -1.28950434032154e-14, -2.3587257316799455e-15, 1.572939507418997e-15, -2.27853251502442e-16,
    -6.30888405833335e-17, 3.605707360567072e-17, -5.940143678749058e-18,
)  # fmt: skip
"""Chebyshev coefficients of exp(x^2) erfc(x) / t in 2t - 1, where t = 2 / (2 + x).

Interpolated at 28 Chebyshev nodes in 60 digits.  The first 13 are enough for f32."""

ZERO_FROM = 30.0
"""x from which on erfc(x) is 0 in every float type."""


def _erfcx_nonnegative(x: Expr) -> Expr:
    """exp(x^2) erfc(x) for x >= 0, by Clenshaw's recurrence."""
    t = 2 / (2 + x)
    u = 2 * t - 1
    coefficients = _ERFCX_CHEBYSHEV if x.dtype.bits == 64 else _ERFCX_CHEBYSHEV[:13]
    b1: Expr = s.const(0, x.dtype)
    b2 = b1
    for c in reversed(coefficients[1:]):
        b1, b2 = s.fma(2 * u, b1, c - b2), b1
    return t * s.fma(u, b1, coefficients[0] - b2)


def _exp_of_square(x: Expr, sign: float) -> Expr:
    """exp(sign x^2), with x split such that the square of its larger part is exact.

    Otherwise the rounding error of x^2 would be multiplied by x^2.
    """
    z = s.trunc(x * 16) * 0.0625
    return s.exp(sign * (z * z)) * s.exp(sign * ((x - z) * (x + z)))


def _erfc(x: Expr) -> Expr:
    a = s.minimum(s.absolute(x), ZERO_FROM)
    tail = _erfcx_nonnegative(a) * _exp_of_square(a, -1.0)
    return s.where(x < 0, 2 - tail, tail)


def _erfcx(x: Expr) -> Expr:
    a = s.absolute(x)
    tail = _erfcx_nonnegative(a)
    return s.where(x < 0, 2 * _exp_of_square(s.minimum(a, ZERO_FROM), 1.0) - tail, tail)


def _integer_power(x: Expr, y: Expr) -> Expr:
    """x^y by repeated squaring; overflow wraps.  Negative powers of all numbers but 1 and -1 are 0."""
    one: Expr = s.const(1, x.dtype)

    def step(state: tuple[Expr, Expr], bit: int) -> tuple[Expr, Expr]:
        result, square = state
        return s.where((y & (1 << bit)).ne(0), result * square, result), square * square

    power, _ = reduce(step, range(x.dtype.bits - (x.dtype.kind == "int")), (one, x))
    if x.dtype.kind == "uint":
        return power
    sign = s.where((y & 1).eq(0), one, s.where(x.eq(-1), s.const(-1, x.dtype), one))
    return s.where(y < 0, s.where(x.eq(1) | x.eq(-1), sign, s.const(0, x.dtype)), power)


erfc = declare_op("erfc", "x: float", Elementwise(_erfc), aten=("aten.erfc.default", "aten.special_erfc.default"),
          reference=torch.erfc, samples=[*unary(dtypes=FLOATS), *unary(low=0, high=9)])  # fmt: skip
erfcx = declare_op("erfcx", "x: float", Elementwise(_erfcx), aten="aten.special_erfcx.default", reference=torch.special.erfcx,
           samples=[*unary(dtypes=("f32", "f64")), *unary(low=0, high=90)])  # fmt: skip
"""exp(x^2) erfc(x)"""

integer_power = declare_op(
    "integer_power", "x: integer, y: integer", Elementwise(_integer_power), reference=torch.pow,
    samples=[*binary(dtypes=("i64", "i32", "u8"), low=0, high=5), sample_input("i64[50]", "i64[50]", low=0, high=70), sample_input("i32[9]", "i32[]", low=-1, high=-1)],
)  # fmt: skip
