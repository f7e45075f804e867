"""Exponentials, logarithms and trigonometry."""

from __future__ import annotations

import math

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import unary
from compiler.ir.scalar import Expr

FLOATS = ("f32", "f64", "bf16", "f16")
LARGE = 1e8
"""Where x*x + 1 is x*x in every float type."""


def _asinh(x: Expr) -> Expr:
    """sign(x) * log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))): no cancellation near 0, no overflow far out."""
    a = s.absolute(x)
    near = s.log1p(a + a * a / (1 + s.sqrt(a * a + 1)))
    return s.copysign(s.where(a > LARGE, s.log(a) + math.log(2), near), x)


def _acosh(x: Expr) -> Expr:
    """log1p(x - 1 + sqrt(x^2 - 1)) with a root for each factor: below 1 they are NaN however far down, where x^2 overflows."""
    over = x - 1
    return s.where(x > LARGE, s.log(x) + math.log(2), s.log1p(over + s.sqrt(over) * s.sqrt(over + 2)))


def _atanh(x: Expr) -> Expr:
    a = s.absolute(x)
    return s.copysign(0.5 * s.log1p(2 * a / (1 - a)), x)


exp = declare_op(
    "exp", "x: float", Elementwise(s.exp), aten="aten.exp.default", reference=torch.exp, samples=unary(dtypes=FLOATS)
)
exp2 = declare_op(
    "exp2",
    "x: float",
    Elementwise(s.exp2),
    aten="aten.exp2.default",
    reference=torch.exp2,
    samples=unary(dtypes=FLOATS),
)
expm1 = declare_op(
    "expm1",
    "x: float",
    Elementwise(s.expm1),
    aten="aten.expm1.default",
    reference=torch.expm1,
    samples=unary(dtypes=FLOATS),
)
log = declare_op(
    "log",
    "x: float",
    Elementwise(s.log),
    aten="aten.log.default",
    reference=torch.log,
    samples=unary(low=0, dtypes=FLOATS),
)
log2 = declare_op(
    "log2",
    "x: float",
    Elementwise(s.log2),
    aten="aten.log2.default",
    reference=torch.log2,
    samples=unary(low=0, dtypes=FLOATS),
)
log10 = declare_op("log10", "x: float", Elementwise(lambda x: s.log(x) / math.log(10)), aten="aten.log10.default", reference=torch.log10,
           samples=unary(low=0, dtypes=FLOATS))  # fmt: skip
log1p = declare_op("log1p", "x: float", Elementwise(s.log1p), aten="aten.log1p.default", reference=torch.log1p,
           samples=unary(low=-0.9, dtypes=FLOATS))  # fmt: skip
sin = declare_op(
    "sin", "x: float", Elementwise(s.sin), aten="aten.sin.default", reference=torch.sin, samples=unary(dtypes=FLOATS)
)
cos = declare_op(
    "cos", "x: float", Elementwise(s.cos), aten="aten.cos.default", reference=torch.cos, samples=unary(dtypes=FLOATS)
)
tan = declare_op(
    "tan",
    "x: float",
    Elementwise(s.tan),
    aten="aten.tan.default",
    reference=torch.tan,
    samples=unary(low=-1.4, high=1.4),
)
asin = declare_op(
    "asin",
    "x: float",
    Elementwise(s.asin),
    aten="aten.asin.default",
    reference=torch.asin,
    samples=unary(low=-1, high=1),
)
acos = declare_op(
    "acos",
    "x: float",
    Elementwise(s.acos),
    aten="aten.acos.default",
    reference=torch.acos,
    samples=unary(low=-1, high=1),
)
atan = declare_op(
    "atan", "x: float", Elementwise(s.atan), aten="aten.atan.default", reference=torch.atan, samples=unary()
)
sinh = declare_op(
    "sinh", "x: float", Elementwise(s.sinh), aten="aten.sinh.default", reference=torch.sinh, samples=unary()
)
cosh = declare_op(
    "cosh", "x: float", Elementwise(s.cosh), aten="aten.cosh.default", reference=torch.cosh, samples=unary()
)
tanh = declare_op(
    "tanh",
    "x: float",
    Elementwise(s.tanh),
    aten="aten.tanh.default",
    reference=torch.tanh,
    samples=unary(dtypes=FLOATS),
)
asinh = declare_op(
    "asinh", "x: float", Elementwise(_asinh), aten="aten.asinh.default", reference=torch.asinh, samples=unary()
)
acosh = declare_op(
    "acosh",
    "x: float",
    Elementwise(_acosh),
    aten="aten.acosh.default",
    reference=torch.acosh,
    samples=unary(low=1, high=1e9),
)
atanh = declare_op("atanh", "x: float", Elementwise(_atanh), aten="aten.atanh.default", reference=torch.atanh,
           samples=unary(low=-0.99, high=0.99))  # fmt: skip
erf = declare_op("erf", "x: float", Elementwise(s.erf), aten=("aten.erf.default", "aten.special_erf.default"), reference=torch.erf,
         samples=unary(dtypes=FLOATS))  # fmt: skip
sigmoid = declare_op("sigmoid", "x: float", Elementwise(lambda x: 1 / (1 + s.exp(-x))),
             aten=("aten.sigmoid.default", "aten.special_expit.default"), reference=torch.sigmoid,
             samples=unary(dtypes=FLOATS))  # fmt: skip
