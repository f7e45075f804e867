"""Arithmetic ops.  Integer overflow wraps; integer division never traps."""

from __future__ import annotations

import numpy as np
import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import FLOATS, binary, unary
from compiler.ir.scalar import Const, Expr

NUMBERS = ("f32", "i64", "f64", "bf16", "i32", "u8")


def _fma_reference(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(z.double(), x.double(), y.double()).to(x.dtype)


def _quotient(x: Expr, y: Expr) -> Expr:
    """Integer `x / y`, truncated.  Divisors 0 (result 0) and -1 (wrapped negation) would trap in hardware."""
    if isinstance(y, Const) and y.value not in (0, -1):
        return x / y
    is_signed = x.dtype.kind == "int"
    zero, minus_one = y.eq(0), y.eq(-1 if is_signed else 0)
    quotient = x / s.where(zero | minus_one, 1, y)
    return s.where(zero, 0, s.where(minus_one, -x, quotient) if is_signed else quotient)


def _signs_differ(x: Expr, y: Expr) -> Expr:
    return (x < 0) ^ (y < 0)


def _floor_divide(x: Expr, y: Expr) -> Expr:
    """Division rounded down.  Floats follow CPython's `//`: a quotient one ulp below an integer has that integer as its floor."""
    if not x.dtype.is_float:
        q = _quotient(x, y)
        if x.dtype.kind == "uint":
            return q
        return s.where((x - q * y).ne(0) & _signs_differ(x, y), q - 1, q)
    r = s.rem(x, y)
    exact = (x - r) / y
    exact = s.where(r.ne(0) & _signs_differ(y, r), exact - 1, exact)
    floored = s.floor(exact)
    floored = s.where(exact - floored > 0.5, floored + 1, floored)
    signed = s.where(exact.ne(0), floored, s.copysign(s.const(0, x.dtype), x / y))
    return s.where(y.eq(0), x / y, signed)


def _remainder(x: Expr, y: Expr) -> Expr:
    """Remainder of `floor_divide`, which has the divisor's sign."""
    if not x.dtype.is_float:
        r = x - _quotient(x, y) * y
        return r if x.dtype.kind == "uint" else s.where(r.ne(0) & _signs_differ(r, y), r + y, r)
    r = s.rem(x, y)
    return s.where(r.ne(0) & _signs_differ(y, r), r + y, r)


def _trunc_divide(x: Expr, y: Expr) -> Expr:
    return s.trunc(x / y) if x.dtype.is_float else _quotient(x, y)


def _fmod(x: Expr, y: Expr) -> Expr:
    return s.rem(x, y) if x.dtype.is_float else x - _quotient(x, y) * y


def _fmod_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute `fmod`, floats in float64 by NumPy: PyTorch's vectors give NaN for subnormal divisors and quotients that overflow."""
    if not x.is_floating_point():
        return torch.fmod(x, y)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.fmod(x.double().numpy(), y.double().numpy()))).to(x.dtype)


def _remainder_reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the remainder that has the divisor's sign; floats in float64."""
    if not x.is_floating_point():
        return torch.remainder(x, y)
    r = _fmod_reference(x.double(), y.double())
    return torch.where(r.ne(0) & r.lt(0).ne(y.lt(0)), r + y, r).to(x.dtype)


def _sign(x: Expr) -> Expr:
    """Sign: -1, 0 or 1; 0 for NaN, as in PyTorch."""
    one, zero = s.const(1, x.dtype), s.const(0, x.dtype)
    positive = s.where(x > 0, one, zero)
    return positive if x.dtype.kind == "uint" else s.where(x < 0, s.const(-1, x.dtype), positive)


def _atan2(y: Expr, x: Expr) -> Expr:
    """Angle of the point (x, y) in radians, signed zeros and infinities included."""
    pi = 3.141592653589793
    ax, ay = s.absolute(x), s.absolute(y)
    small, large = s.minimum(ax, ay), s.maximum(ax, ay)
    undefined = small.eq(float("inf")) | large.eq(0)  # inf/inf and 0/0
    ratio = s.where(undefined, s.where(large.eq(0), s.const(0, x.dtype), s.const(1, x.dtype)), small / large)
    acute = s.atan(ratio)
    angle = s.where(ay > ax, pi / 2 - acute, acute)
    negative = s.copysign(s.const(1, x.dtype), x) < 0
    return s.copysign(s.where(negative, pi - angle, angle), y)


add = declare_op("add", "x: number, y: number", Elementwise(lambda x, y: x + y), reference=torch.add, commutative=True,
         samples=binary(dtypes=NUMBERS))  # fmt: skip
sub = declare_op("sub", "x: number, y: number", Elementwise(lambda x, y: x - y), reference=torch.sub,
         samples=binary(dtypes=NUMBERS))  # fmt: skip
mul = declare_op(
    "mul", "x: number, y: number", Elementwise(lambda x, y: x * y), aten=("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor"),
    reference=torch.mul, commutative=True, samples=binary(dtypes=NUMBERS),
)  # fmt: skip
fma = declare_op(
    "fma", "x: float, y: float, z: float", Elementwise(s.fma), reference=_fma_reference,
    samples=[sample_input("f32[4, 5]", "f32[5]", "f32[]"), sample_input("f32[0, 3]", "f32[3]", "f32[1]")],
)  # fmt: skip
div = declare_op(
    "div", "x: float, y: float", Elementwise(lambda x, y: x / y),
    aten=("aten.div.Tensor", "aten.div.Scalar", "aten.divide.Tensor", "aten.true_divide.Tensor"), reference=torch.div, samples=binary(dtypes=FLOATS),
)  # fmt: skip
trunc_divide = declare_op(
    "trunc_divide", "x: number, y: number", Elementwise(_trunc_divide),
    reference=lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    samples=[*binary(dtypes=FLOATS), sample_input("i64[20]", "i64[20]", low=1, high=9), sample_input("i32[8]", "i32[1]", low=-9, high=-1)],
)  # fmt: skip
floor_divide = declare_op(
    "floor_divide", "x: number, y: number", Elementwise(_floor_divide), aten="aten.floor_divide.default",
    reference=torch.floor_divide,
    samples=[*binary(dtypes=FLOATS), sample_input("i64[20]", "i64[20]", low=1, high=9), sample_input("i32[8]", "i32[1]", low=-9, high=-1)],
)  # fmt: skip
remainder = declare_op(
    "remainder", "x: number, y: number", Elementwise(_remainder), aten=("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"),
    reference=_remainder_reference,
    samples=[*binary(), sample_input("i64[20]", "i64[20]", low=1, high=9), sample_input("i32[8]", "i32[1]", low=-9, high=-1)],
)  # fmt: skip
fmod = declare_op(
    "fmod", "x: number, y: number", Elementwise(_fmod), aten=("aten.fmod.Tensor", "aten.fmod.Scalar"), reference=_fmod_reference,
    samples=[*binary(), sample_input("i64[20]", "i64[20]", low=1, high=9)],
)  # fmt: skip
pow_ = declare_op("pow", "x: float, y: float", Elementwise(s.power), reference=torch.pow,
          samples=[*binary(low=0.1, dtypes=FLOATS), sample_input("f32[9]", "f32[9]")])  # fmt: skip
atan2 = declare_op("atan2", "y: float, x: float", Elementwise(_atan2), aten="aten.atan2.default", reference=torch.atan2,
           samples=binary())  # fmt: skip
minimum = declare_op("minimum", "x: number, y: number", Elementwise(s.minimum), aten="aten.minimum.default", reference=torch.minimum,
             commutative=True, samples=binary(dtypes=NUMBERS))  # fmt: skip
maximum = declare_op("maximum", "x: number, y: number", Elementwise(s.maximum), aten="aten.maximum.default", reference=torch.maximum,
             commutative=True, samples=binary(dtypes=NUMBERS))  # fmt: skip
copysign = declare_op("copysign", "x: float, y: float", Elementwise(s.copysign), aten="aten.copysign.Tensor", reference=torch.copysign,
              samples=binary())  # fmt: skip

neg = declare_op("neg", "x: number", Elementwise(lambda x: -x), aten=("aten.neg.default", "aten._neg_view.default"), reference=torch.neg,
         samples=unary(dtypes=NUMBERS))  # fmt: skip
abs_ = declare_op("abs", "x: number", Elementwise(s.absolute), aten="aten.abs.default", reference=torch.abs,
          samples=unary(dtypes=("f32", "i64", "bf16")))  # fmt: skip
sign = declare_op("sign", "x: number", Elementwise(_sign), aten=("aten.sign.default", "aten.sgn.default"), reference=torch.sign,
          samples=unary(dtypes=NUMBERS))  # fmt: skip
sqrt = declare_op("sqrt", "x: float", Elementwise(s.sqrt), aten="aten.sqrt.default", reference=torch.sqrt,
          samples=unary(low=0, dtypes=FLOATS))  # fmt: skip
rsqrt = declare_op("rsqrt", "x: float", Elementwise(s.rsqrt), aten="aten.rsqrt.default", reference=torch.rsqrt,
           samples=unary(low=0.1, dtypes=FLOATS))  # fmt: skip
reciprocal = declare_op("reciprocal", "x: float", Elementwise(lambda x: 1 / x), aten="aten.reciprocal.default", reference=torch.reciprocal,
                samples=unary(low=0.1, dtypes=FLOATS))  # fmt: skip
