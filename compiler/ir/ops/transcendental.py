"""Exponentials, logarithms, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.node import Op
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import FLOATS, unary
from compiler.ir.scalar import Expr

LARGE = 1e8
"""x from which on x*x + 1 rounds to x*x in every float type."""


def _asinh(x: Expr) -> Expr:
    """sign(x) * log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))): no cancellation near 0, no overflow for large x."""
    a = s.absolute(x)
    near = s.log1p(a + a * a / (1 + s.sqrt(a * a + 1)))
    return s.copysign(s.where(a > LARGE, s.log(a) + math.log(2), near), x)


def _acosh(x: Expr) -> Expr:
    """log1p(x - 1 + sqrt(x - 1) sqrt(x + 1)): two roots, because x^2 overflows for large negative x, where the result is NaN."""
    d = x - 1
    return s.where(x > LARGE, s.log(x) + math.log(2), s.log1p(d + s.sqrt(d) * s.sqrt(d + 2)))


def _atanh(x: Expr) -> Expr:
    a = s.absolute(x)
    return s.copysign(0.5 * s.log1p(2 * a / (1 - a)), x)


def _float_op(
    name: str, fn: Callable[[Expr], Expr], dtypes: Sequence[str] = ("f32",), *, low: float = -4.0, high: float = 4.0
) -> Op:
    """Declare `torch.<name>` of one float operand by its scalar function, with samples in low..high."""
    return declare_op(name, "x: float", Elementwise(fn), aten=f"aten.{name}.default", reference=getattr(torch, name),
                      samples=unary(low=low, high=high, dtypes=dtypes))  # fmt: skip


exp = _float_op("exp", s.exp, FLOATS)
exp2 = _float_op("exp2", s.exp2, FLOATS)
exp_ftz = declare_op("exp_ftz", "x: float", Elementwise(s.exp_ftz), reference=torch.exp,
             samples=unary(low=-8, high=0, dtypes=FLOATS))  # fmt: skip
"""e^x for x <= 0, any number from 1 to e^x for others; results below the smallest normal number may be flushed to zero."""
expm1 = _float_op("expm1", s.expm1, FLOATS)
log = _float_op("log", s.log, FLOATS, low=0)
log2 = _float_op("log2", s.log2, FLOATS, low=0)
log10 = _float_op("log10", lambda x: s.log(x) / math.log(10), FLOATS, low=0)
log1p = _float_op("log1p", s.log1p, FLOATS, low=-0.9)
sin = _float_op("sin", s.sin, FLOATS)
cos = _float_op("cos", s.cos, FLOATS)
tan = _float_op("tan", s.tan, low=-1.4, high=1.4)
asin = _float_op("asin", s.asin, low=-1, high=1)
acos = _float_op("acos", s.acos, low=-1, high=1)
atan = _float_op("atan", s.atan)
sinh = _float_op("sinh", s.sinh)
cosh = _float_op("cosh", s.cosh)
tanh = _float_op("tanh", s.tanh, FLOATS)
asinh = _float_op("asinh", _asinh)
acosh = _float_op("acosh", _acosh, low=1, high=1e9)
atanh = _float_op("atanh", _atanh, low=-0.99, high=0.99)
erf = declare_op("erf", "x: float", Elementwise(s.erf), aten=("aten.erf.default", "aten.special_erf.default"), reference=torch.erf,
         samples=unary(dtypes=FLOATS))  # fmt: skip
sigmoid = declare_op("sigmoid", "x: float", Elementwise(lambda x: 1 / (1 + s.exp(-x))),
             aten=("aten.sigmoid.default", "aten.special_expit.default"), reference=torch.sigmoid,
             samples=unary(dtypes=FLOATS))  # fmt: skip
