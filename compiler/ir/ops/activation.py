"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import FLOATS, unary
from compiler.ir.scalar import Expr


def _gelu(x: Expr, approximate: str) -> Expr:
    """x * Phi(x), with Phi from erf or from the tanh approximation (Hendrycks and Gimpel, 2016).

    (1 + tanh z)/2 = 1/(1 + e^-2z) takes less time on CPUs, but a quotient spills registers behind products on GPUs.
    """
    if approximate == "tanh":
        return 0.5 * x * (1 + s.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1 + s.erf(x * math.sqrt(0.5)))


def _softplus(x: Expr, beta: float, threshold: float) -> Expr:
    scaled = x if beta == 1 else x * beta
    soft = s.log1p(s.exp(scaled))
    return s.where(scaled > threshold, x, soft if beta == 1 else soft / beta)


def _elu(x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    return s.where(x <= 0, s.expm1(x * input_scale) * (alpha * scale), x * scale)


def _mish(x: Expr) -> Expr:
    """x * tanh(log(1 + e^x)).

    For u = e^x and n = u * (u + 2), the tangent is n / (n + 2); from x = 20 on it is rounded to 1.
    """
    u = s.exp(s.minimum(x, 20))
    n = u * (u + 2)
    return x * (n / (n + 2))


def _hard_sigmoid(x: Expr) -> Expr:
    return s.minimum(s.maximum(x + 3, 0), 6) / 6


def _elu_reference(x: torch.Tensor, alpha: float, scale: float, input_scale: float) -> Any:
    return torch.ops.aten.elu.default(x, alpha, scale, input_scale)


relu = declare_op("relu", "x: number", Elementwise(lambda x: s.maximum(x, 0)), aten="aten.relu.default", reference=torch.relu,
          samples=unary(dtypes=("f32", "i64", "bf16")))  # fmt: skip
silu = declare_op("silu", "x: float", Elementwise(lambda x: x / (1 + s.exp(-x))), aten="aten.silu.default", reference=F.silu,
          samples=unary(dtypes=FLOATS))  # fmt: skip
gelu = declare_op("gelu", "x: float", Elementwise(_gelu), attrs={"approximate": "none"}, aten="aten.gelu.default", reference=F.gelu,
          samples=[*unary(dtypes=FLOATS), *unary(approximate="tanh")])  # fmt: skip
softplus = declare_op("softplus", "x: float", Elementwise(_softplus), attrs={"beta": 1.0, "threshold": 20.0}, aten="aten.softplus.default",
              reference=F.softplus, samples=[*unary(), sample_input("f32[9]", beta=2.0, threshold=3.0)])  # fmt: skip
elu = declare_op("elu", "x: float", Elementwise(_elu), attrs={"alpha": 1.0, "scale": 1.0, "input_scale": 1.0}, aten="aten.elu.default",
         reference=_elu_reference, samples=[*unary(), sample_input("f32[9]", alpha=1.5, scale=2.0, input_scale=0.5)])  # fmt: skip
leaky_relu = declare_op("leaky_relu", "x: float", Elementwise(lambda x, negative_slope: s.where(x > 0, x, x * negative_slope)),
                attrs={"negative_slope": 0.01}, aten="aten.leaky_relu.default", reference=F.leaky_relu,
                samples=[*unary(), sample_input("f32[9]", negative_slope=0.2)])  # fmt: skip
mish = declare_op("mish", "x: float", Elementwise(_mish), aten="aten.mish.default", reference=F.mish, samples=unary())
hardsigmoid = declare_op("hardsigmoid", "x: float", Elementwise(_hard_sigmoid), aten="aten.hardsigmoid.default", reference=F.hardsigmoid,
                 samples=unary(dtypes=FLOATS))  # fmt: skip
hardswish = declare_op("hardswish", "x: float", Elementwise(lambda x: x * _hard_sigmoid(x)), aten="aten.hardswish.default",
               reference=F.hardswish, samples=unary(dtypes=FLOATS))  # fmt: skip
log_sigmoid = declare_op("log_sigmoid", "x: float", Elementwise(lambda x: s.minimum(x, 0) - s.log1p(s.exp(-s.absolute(x)))),
                 aten="aten.log_sigmoid.default", reference=F.logsigmoid, samples=unary())  # fmt: skip
