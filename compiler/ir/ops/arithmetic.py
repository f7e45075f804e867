"""Arithmetic on numbers.  Integer overflow wraps; integer division never traps."""

from __future__ import annotations

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import binary, unary
from compiler.ir.scalar import Const, Expr

NUMBERS = ("f32", "i64", "f64", "bf16", "i32", "u8")
FLOATS = ("f32", "f64", "bf16", "f16")


def _quotient(x: Expr, y: Expr) -> Expr:
    """Integer `x / y` toward zero; 0 for a zero divisor, the wrapped negation for -1 (both would trap in hardware)."""
    if isinstance(y, Const) and y.value not in (0, -1):
        return x / y
    zero, minus = y.eq(0), y.eq(-1 if x.dtype.kind == "int" else 0)
    plain = x / s.where(zero | minus, 1, y)
    signed = s.where(minus, -x, plain) if x.dtype.kind == "int" else plain
    return s.where(zero, 0, signed)


def _signs_differ(x: Expr, y: Expr) -> Expr:
    return (x < 0) ^ (y < 0)


def _floor_divide(x: Expr, y: Expr) -> Expr:
    """Division rounded down; floats as CPython's `//` (a quotient an ulp below an integer is that integer's floor)."""
    if not x.dtype.is_float:
        q = _quotient(x, y)
        if x.dtype.kind == "uint":
            return q
        return s.where((x - q * y).ne(0) & _signs_differ(x, y), q - 1, q)
    rest = s.rem(x, y)
    exact = (x - rest) / y
    exact = s.where(rest.ne(0) & _signs_differ(y, rest), exact - 1, exact)
    down = s.floor(exact)
    down = s.where(exact - down > 0.5, down + 1, down)
    whole = s.where(exact.ne(0), down, s.copysign(s.const(0, x.dtype), x / y))
    return s.where(y.eq(0), x / y, whole)


def _remainder(x: Expr, y: Expr) -> Expr:
    """What `floor_divide` leaves: the divisor's sign."""
    if not x.dtype.is_float:
        rest = x - _quotient(x, y) * y
        return rest if x.dtype.kind == "uint" else s.where(rest.ne(0) & _signs_differ(rest, y), rest + y, rest)
    rest = s.rem(x, y)
    return s.where(rest.ne(0) & _signs_differ(y, rest), rest + y, rest)


def _divide_toward_zero(x: Expr, y: Expr) -> Expr:
    return s.trunc(x / y) if x.dtype.is_float else _quotient(x, y)


def _fmod(x: Expr, y: Expr) -> Expr:
    return s.rem(x, y) if x.dtype.is_float else x - _quotient(x, y) * y


def _sign(x: Expr) -> Expr:
    """-1, 0 or 1; 0 for NaN, as PyTorch has it."""
    one, zero = s.const(1, x.dtype), s.const(0, x.dtype)
    up = s.where(x > 0, one, zero)
    return up if x.dtype.kind == "uint" else s.where(x < 0, s.const(-1, x.dtype), up)


def _atan2(y: Expr, x: Expr) -> Expr:
    """The angle of (x, y), signed zeros and infinities included."""
    pi = 3.141592653589793
    ax, ay = s.absolute(x), s.absolute(y)
    small, large = s.minimum(ax, ay), s.maximum(ax, ay)
    both = small.eq(float("inf")) | large.eq(0)  # 0/0 and inf/inf
    ratio = s.where(both, s.where(large.eq(0), s.const(0, x.dtype), s.const(1, x.dtype)), small / large)
    acute = s.atan(ratio)
    first = s.where(ay > ax, pi / 2 - acute, acute)
    negative = s.copysign(s.const(1, x.dtype), x) < 0
    return s.copysign(s.where(negative, pi - first, first), y)


add = declare_op("add", "x: number, y: number", Elementwise(lambda x, y: x + y), reference=torch.add, commutative=True,
         samples=binary(dtypes=NUMBERS))  # fmt: skip
sub = declare_op(
    "sub", "x: number, y: number", Elementwise(lambda x, y: x - y), reference=torch.sub, samples=binary(dtypes=NUMBERS)
)
mul = declare_op("mul", "x: number, y: number", Elementwise(lambda x, y: x * y), aten="aten.mul.Tensor", reference=torch.mul,
         commutative=True, samples=binary(dtypes=NUMBERS))  # fmt: skip
div = declare_op("div", "x: float, y: float", Elementwise(lambda x, y: x / y), aten="aten.div.Tensor", reference=torch.div,
         samples=binary(dtypes=FLOATS))  # fmt: skip
divide_toward_zero = declare_op(
    "divide_toward_zero", "x: number, y: number", Elementwise(_divide_toward_zero),
    reference=lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    samples=[*binary(dtypes=FLOATS), sample_input("i64[20]", "i64[20]", low=1, high=9), sample_input("i32[8]", "i32[1]", low=-9, high=-1)],
)  # fmt: skip
floor_divide = declare_op(
    "floor_divide", "x: number, y: number", Elementwise(_floor_divide), aten="aten.floor_divide.default",
    reference=torch.floor_divide,
    samples=[*binary(dtypes=FLOATS), sample_input("i64[20]", "i64[20]", low=1, high=9), sample_input("i32[8]", "i32[1]", low=-9, high=-1)],
)  # fmt: skip
remainder = declare_op(
    "remainder", "x: number, y: number", Elementwise(_remainder), aten=("aten.remainder.Tensor", "aten.remainder.Scalar"),
    reference=torch.remainder,
    samples=[*binary(), sample_input("i64[20]", "i64[20]", low=1, high=9), sample_input("i32[8]", "i32[1]", low=-9, high=-1)],
)  # fmt: skip
fmod = declare_op(
    "fmod", "x: number, y: number", Elementwise(_fmod), aten=("aten.fmod.Tensor", "aten.fmod.Scalar"), reference=torch.fmod,
    samples=[*binary(), sample_input("i64[20]", "i64[20]", low=1, high=9)],
)  # fmt: skip
pow_ = declare_op("pow", "x: float, y: float", Elementwise(s.power), reference=torch.pow,
          samples=[*binary(low=0.1, dtypes=FLOATS), sample_input("f32[9]", "f32[9]")])  # fmt: skip
atan2 = declare_op(
    "atan2",
    "y: float, x: float",
    Elementwise(_atan2),
    aten="aten.atan2.default",
    reference=torch.atan2,
    samples=binary(),
)
minimum = declare_op("minimum", "x: number, y: number", Elementwise(s.minimum), aten="aten.minimum.default", reference=torch.minimum,
             commutative=True, samples=binary(dtypes=NUMBERS))  # fmt: skip
maximum = declare_op("maximum", "x: number, y: number", Elementwise(s.maximum), aten="aten.maximum.default", reference=torch.maximum,
             commutative=True, samples=binary(dtypes=NUMBERS))  # fmt: skip
copysign = declare_op("copysign", "x: float, y: float", Elementwise(s.copysign), aten="aten.copysign.Tensor", reference=torch.copysign,
              samples=binary())  # fmt: skip

neg = declare_op(
    "neg",
    "x: number",
    Elementwise(lambda x: -x),
    aten="aten.neg.default",
    reference=torch.neg,
    samples=unary(dtypes=NUMBERS),
)
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
