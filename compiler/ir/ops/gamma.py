"""Logarithm of the gamma function, and its derivative.

Below a threshold the argument z is shifted to an interval of length 1, where a polynomial approximates the function.  Beyond, the
asymptotic series is accurate enough (NIST Digital Library of Mathematical Functions, 5.11.1, 5.11.2).  Arguments below 1/2 are
reflected (5.5.3, 5.5.4).  Polynomials are minimax fits of relative error by Remez's algorithm in 60 digits.
"""

from __future__ import annotations

from math import inf, nan, pi
from typing import Any

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import FLOATS, unary
from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr
from compiler.ir.types import f32, f64

LGAMMA_NEAR_2 = {
    f32: (
        0.42278433, 0.32246703, -0.06735222, 0.020581603, -0.0073874285, 0.0028790543, -0.0011778366, 0.00056982774,
        -0.00026985674,
    ),
    f64: (
        0.42278433509846713, 0.32246703342411326, -0.06735230105319831, 0.020580808427780574, -0.007385551028649664,
        0.002890510331023428, -0.0011927539127601727, 0.0005096695156826658, -0.00022315473513273115,
        9.945766996029095e-05, -4.4926531459895924e-05, 2.050561785782556e-05, -9.437234847538434e-06,
        4.384588065110981e-06, -2.0497604698322886e-06, 9.203179169801559e-07, -4.20032483260137e-07,
        2.784919089304117e-07, -1.433024499290198e-07,
    ),
}  # fmt: skip
"""lgamma(2 + t) / t on |t| <= 1/2, to 2^-28.7 (degree 8) and 2^-59.4 (degree 18)."""

LGAMMA_FAR = {
    f32: (0.083333306, -0.002763852),
    f64: (
        0.08333333333333326, -0.002777777777466909, 0.000793650586862195, -0.0005951875979074442, 0.0008361259336690894,
        -0.0016217000895458436,
    ),
}  # fmt: skip
"""z (lgamma z - (z - 1/2) (log z - 1) - LOG_ROOT_TAU + 1/2) in 1 / z^2 from 7.5 on, to 2^-25.0 and 2^-53.5."""
LOG_ROOT_TAU = 0.9189385332046728  # log(2 pi) / 2

DIGAMMA_NEAR = {
    f32: (
        0.9510559, -0.4236275, 0.24054262, -0.14839877, 0.094982095, -0.062057234, 0.040879272, -0.025780164, 0.01698057,
        -0.016385613, 0.011118563,
    ),
    f64: (
        0.951055876031833, -0.4236274212814606, 0.24054248424077396, -0.1484049230538902, 0.09498872445497708,
        -0.06192213327468678, 0.04076083381057618, -0.026975796691557436, 0.01790725248758472, -0.011908219413802051,
        0.007926943925353848, -0.0052799463195547115, 0.0035190129743752053, -0.0023454203464332115,
        0.001556594677597269, -0.0010368440095612278, 0.0007234529317614695, -0.0004847254934710821,
        0.0002269949704502483, -0.00014698447758416166, 0.00025987569895370244, -0.0001765590873391525,
    ),
}  # fmt: skip
"""digamma(3/2 + t) / (3/2 + t - root) on |t| <= 1/2, to 2^-28.0 (degree 10) and 2^-56.0 (degree 21)."""
DIGAMMA_ROOT = {f32: (1.4616321, 1.243815e-08), f64: (1.4616321449683622, 9.549995429965697e-17)}  # high and low part

DIGAMMA_FAR = {
    f32: (0.083333135, -0.008254023),
    f64: (
        0.08333333333333329, -0.008333333333096568, 0.00396825377913743, -0.004166609807425424, 0.0075675495646178965,
        -0.02047351202128829, 0.05907104322497632,
    ),
}  # fmt: skip
"""z^2 (log z - 1 / 2z - digamma z) in 1 / z^2 from 7 on, to 2^-22.3 and 2^-54.2."""

SIN_PI = {
    f32: (1.0, -1.6449333, 0.81171644, -0.19044739, 0.024725031),
    f64: (
        1.0, -1.6449340668482264, 0.8117424252833402, -0.1907518241215021, 0.026147847805474956, -0.0023460808939005707,
        0.0001484278310523913, -6.972068804981706e-06, 2.449945228169773e-07,
    ),
}  # fmt: skip
"""sin(pi r) / (pi r) in r^2 on |r| <= 1/2, 1 for r = 0, to 2^-27.3 and 2^-61.6."""
COS_PI = {
    f32: (1.0, -4.934802, 4.0587096, -1.3352162, 0.23495397, -0.024420753),
    f64: (
        1.0, -4.934802200544677, 4.058712126416545, -1.3352627688446865, 0.23533063014633135, -0.025806888865476357,
        0.001929556830138812, -0.00010456783472199175, 4.150774628039872e-06,
    ),
}  # fmt: skip
"""cos(pi r) in r^2 on |r| <= 1/2, 1 for r = 0, to 2^-31.9 and 2^-57.7."""


def _lgamma(x: Expr) -> Expr:
    """log |gamma(x)|.

    Error 5 epsilon for x >= 1/2; below, where it has zeros between poles, 9 epsilon of the larger of 1 and the result.

    Near z = n + t, n = 1 .. 7:  lgamma z = lgamma(2 + t) + log((z - 1) ... (z - n + 2)), and - log z for n = 1.
    """
    low = x < 0.5
    z = s.where(low, 1 - x, x)
    n = s.round_even(z)
    n = s.where(n > 7, s.const(7, x.dtype), s.where(n < 1, s.const(1, x.dtype), n))
    t = z - n
    product: Expr = s.const(1, x.dtype)
    for i in range(1, 6):
        product = s.where(n >= i + 2, product * (z - i), product)
    near = z < 7.5
    n_is_1 = n < 1.5
    log = s.log(s.where(near, s.where(n_is_1, z, product), z))
    u = 1 / z
    far = s.fma(z - 0.5, log - 1, s.fma(u, polynomial(u * u, LGAMMA_FAR[x.dtype]), LOG_ROOT_TAU - 0.5))
    y = s.where(near, s.fma(t, polynomial(t, LGAMMA_NEAR_2[x.dtype]), s.where(n_is_1, -log, log)), far)
    r = x - s.round_even(x)
    reflected = -s.log(s.absolute(r) * polynomial(r * r, SIN_PI[x.dtype])) - y
    return s.where(low, s.where(x.eq(s.round_even(x)), s.const(inf, x.dtype), reflected), y)


def _cot_pi(x: Expr) -> Expr:
    """pi cot(pi x)."""
    r = x - s.round_even(x)
    square = r * r
    return polynomial(square, COS_PI[x.dtype]) / (r * polynomial(square, SIN_PI[x.dtype]))


def _digamma(x: Expr) -> Expr:
    """gamma'(x) / gamma(x).

    Error 3 epsilon for x >= 1/2; below, where it has zeros between poles, 6 epsilon of the larger of 1 and the result.

    Near z in [n, n + 1), n = 1 .. 6:  digamma z = digamma(z - n + 1) + 1/(z - 1) + ... + 1/(z - n + 1), summed as one quotient.
    """
    low = x < 0.5
    z = s.where(low, 1 - x, x)
    y = s.where(z < 1, z + 1, z)
    numerator: Expr = s.where(z < 1, s.const(-1, x.dtype), 0)
    denominator: Expr = s.where(z < 1, z, 1)
    for i in range(1, 6):
        more, w = z >= i + 1, z - i
        numerator = s.where(more, s.fma(numerator, w, denominator), numerator)
        denominator = s.where(more, denominator * w, denominator)
        y = s.where(more, w, y)
    root, root_low = DIGAMMA_ROOT[x.dtype]
    near = s.fma(y - root - root_low, polynomial(y - 1.5, DIGAMMA_NEAR[x.dtype]), numerator / denominator)
    u = 1 / z
    far = s.log(z) - s.fma(u, u * polynomial(u * u, DIGAMMA_FAR[x.dtype]), u * 0.5)
    y = s.where(z < 7, near, far)
    reflected = s.where(x.eq(s.round_even(x)), nan, y - _cot_pi(x))
    return s.where(low, s.where(x.eq(0), s.copysign(s.const(inf, x.dtype), -x), reflected), y)


def _digamma_reference(x: Any) -> Any:
    """Reference by PyTorch, reflected here: the distance from the nearest pole keeps digits that PyTorch's own reflection loses."""
    reflected = torch.digamma(1 - x) - pi / torch.tan(pi * (x - x.round()))
    return torch.where((x < 0) & (x != x.round()), reflected, torch.digamma(x))


lgamma = declare_op("lgamma", "x: float", Elementwise(_lgamma), aten="aten.lgamma.default", reference=torch.lgamma,
            samples=[*unary(dtypes=FLOATS), *unary(low=0.5, high=40)])  # fmt: skip
digamma = declare_op("digamma", "x: float", Elementwise(_digamma), aten="aten.digamma.default", reference=_digamma_reference,
             samples=[*unary(dtypes=("f32", "f64"), low=0.01, high=20), *unary(dtypes=("bf16",), low=0.5, high=40)])  # fmt: skip
