"""Modified Bessel functions of the first kind, I0 and I1, and both scaled by exp(-|x|)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import unary
from compiler.ir.polynomial import polynomial
from compiler.ir.scalar import Expr
from compiler.ir.types import f32, f64

ASYMPTOTIC_THRESHOLD = {f32: 8.0, f64: 16.0}
"""|x| up to which a polynomial in x^2 approximates the function; beyond, one in 1 / x approximates its ratio to exp(x) / sqrt(x).

Their forms are those of the power series and the asymptotic series (NIST Digital Library of Mathematical Functions, 10.25.2 and
10.40.1), their coefficients minimax fits of relative error by Remez's algorithm in 50 digits."""

I0_NEAR = {
    f32: (
        1.0, 0.25000006, 0.01562495, 0.00043404382, 6.779314e-06, 6.800496e-08, 4.6235227e-10, 2.6341837e-12,
        5.8156727e-15, 5.7160616e-17,
    ),
    f64: (
        1.0, 0.25, 0.015624999999999995, 0.0004340277777777803, 6.781684027777171e-06, 6.781684027786281e-08,
        4.709502796992292e-10, 2.4028075499792314e-12, 9.385966970972454e-15, 2.896903452315556e-17,
        7.24225707634856e-20, 1.4963368899391244e-22, 2.597768616600523e-25, 3.8432671605522527e-28,
        4.898644222762946e-31, 5.465794230328178e-34, 5.221228582492412e-37, 4.9719102811375316e-40,
        2.4984482322464156e-43, 4.587028667596611e-46, -1.313954387815987e-49, 3.003087019747238e-52,
    ),
}  # fmt: skip
"""I0(x) in x^2, to 2^-26.7 and 2^-61.0."""

I1_NEAR = {
    f32: (
        1.0, 0.12500001, 0.0052083256, 0.00010850915, 1.3560431e-06, 1.1324222e-08, 6.636529e-11, 3.2357228e-13,
        7.0082934e-16, 5.5012317e-18,
    ),
    f64: (
        1.0, 0.125, 0.005208333333333333, 0.00010850694444444474, 1.3563368055554938e-06, 1.1302806712970725e-08,
        6.727861138605599e-11, 3.0035094372536196e-13, 1.0428852197701054e-15, 2.896903432267922e-18,
        6.583870461493758e-21, 1.2469468215599196e-23, 1.9982903318511294e-26, 2.7451300197394303e-29,
        3.266186095872421e-32, 3.413845592271111e-35, 3.080657233744783e-38, 2.7334310380543094e-41,
        1.3789725476448556e-44, 2.196141109012934e-47, -5.351927381272713e-51, 1.3263035039931476e-53,
    ),
}  # fmt: skip
"""I1(x) / (x / 2) in x^2, to 2^-28.8 and 2^-63.4."""

I0_FAR = {
    f32: (
        0.3989423, 0.049869586, 0.0278988, 0.033785153, -0.0138508715, 0.38796735,
    ),
    f64: (
        0.3989422804014327, 0.04986778505015714, 0.02805062910958467, 0.029219398949121674, 0.044743322118295493,
        0.09048874244535873, 0.23589086735509457, 0.36389106332020965, 11.908710992228, -174.64117888550217,
        2347.526556010787, -16679.26147823135, 57944.101400348445,
    ),
}  # fmt: skip
"""I0(x) exp(-x) sqrt(x) in 1 / x, to 2^-26.8 and 2^-56.4."""

I1_FAR = {
    f32: (
        0.3989423, -0.14960545, -0.046575785, -0.04615602, 0.009696344, -0.45237106,
    ),
    f64: (
        0.39894228040143265, -0.14960335515051362, -0.046751048504802085, -0.04090716061176244,
        -0.057526889833292245, -0.1106148926162704, -0.2779211342585702, -0.44848098087259897, -12.84627589502054,
        185.2573348191732, -2497.217022310879, 17713.09019557234, -61589.56935111547,
    ),
}  # fmt: skip
"""I1(x) exp(-x) sqrt(x) in 1 / x, to 2^-26.6 and 2^-56.3."""


def _bessel(x: Expr, *, odd: bool = False, scaled: bool = False) -> Expr:
    """I1(x) if `odd`, else I0(x), times exp(-|x|) if `scaled`.  Relative error 4 epsilon.

    Multiplies by exp(x / 2) twice, since exp(x) overflows before I0(x) does.
    """
    near, far = (I1_NEAR, I1_FAR) if odd else (I0_NEAR, I0_FAR)
    a = s.absolute(x)
    is_near = a < ASYMPTOTIC_THRESHOLD[x.dtype]
    near_x, far_x = s.where(is_near, a, 0), s.where(is_near, 1, a)
    near_y = polynomial(near_x * near_x, near[x.dtype])
    if odd:
        near_y = near_y * (near_x * 0.5)
    u = 1 / far_x
    far_y = polynomial(u, far[x.dtype]) * s.sqrt(u)
    if scaled:
        y = s.where(is_near, near_y * s.exp(-near_x), far_y)
    else:
        root = s.exp(far_x * 0.5)
        y = s.where(is_near, near_y, far_y * root * root)
    return s.where(x < 0, -y, y) if odd else y  # NaN stays NaN


def _in_f64(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`function` evaluated in f64: in f32 PyTorch's exp(x) overflows before the result does."""
    return lambda x: function(x.double()).to(x.dtype)


i0 = declare_op("i0", "x: float", Elementwise(_bessel), aten=("aten.i0.default", "aten.special_modified_bessel_i0.default"),
        reference=_in_f64(torch.special.i0), samples=[*unary(dtypes=("f32", "f64", "bf16")), *unary(low=6, high=40)])  # fmt: skip
i0e = declare_op("i0e", "x: float", Elementwise(partial(_bessel, scaled=True)), aten="aten.special_i0e.default",
         reference=torch.special.i0e, samples=[*unary(dtypes=("f32", "f64")), *unary(low=6, high=400)])  # fmt: skip
i1 = declare_op("i1", "x: float", Elementwise(partial(_bessel, odd=True)), aten=("aten.special_i1.default", "aten.special_modified_bessel_i1.default"),
        reference=_in_f64(torch.special.i1), samples=[*unary(dtypes=("f32", "f64")), *unary(low=6, high=40)])  # fmt: skip
i1e = declare_op("i1e", "x: float", Elementwise(partial(_bessel, odd=True, scaled=True)), aten="aten.special_i1e.default",
         reference=torch.special.i1e, samples=[*unary(dtypes=("f32", "f64")), *unary(low=-400, high=-6)])  # fmt: skip
