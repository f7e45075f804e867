"""Conversions of elementwise operators whose arguments do not map one to one to an op."""

from __future__ import annotations

import math
from typing import Any

import torch

from compiler.frontend.promotion import (
    SymbolicScalar,
    TensorOrNumber,
    apply_promoted,
    as_float,
    as_node,
    common_dtype,
    widen_half,
)
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.torch_types import from_torch, to_torch
from compiler.ir.types import boolean, i64

INF = float("inf")


def _scale_by_alpha(y: TensorOrNumber, alpha: TensorOrNumber) -> TensorOrNumber:
    """Return `y * alpha`, as a Python number if both are numbers."""
    if not isinstance(alpha, Node) and alpha == 1:
        return y
    if isinstance(y, (Node, SymbolicScalar)) or isinstance(alpha, (Node, SymbolicScalar)):
        return apply_promoted(ops.mul, y, alpha)
    return y * alpha  # type: ignore[operator]


@converts("aten.add.Tensor", "aten.add.Scalar")
def add(x: TensorOrNumber, y: TensorOrNumber, alpha: TensorOrNumber = 1) -> Node:
    return apply_promoted(ops.add, x, _scale_by_alpha(y, alpha))


@converts("aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor")
def sub(x: TensorOrNumber, y: TensorOrNumber, alpha: TensorOrNumber = 1) -> Node:
    return apply_promoted(ops.sub, x, _scale_by_alpha(y, alpha))


@converts("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(x: TensorOrNumber, y: TensorOrNumber, alpha: TensorOrNumber = 1) -> Node:
    return apply_promoted(ops.sub, y, _scale_by_alpha(x, alpha))


@converts("aten.mul.Scalar", "aten.multiply.Tensor")
def mul(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    return apply_promoted(ops.mul, x, y)


@converts("aten.div.Scalar", "aten.true_divide.Tensor", "aten.divide.Tensor")
def div(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    return apply_promoted(ops.div, x, y)


@converts("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: TensorOrNumber, y: TensorOrNumber, rounding_mode: str | None = None) -> Node:
    modes = {None: ops.div, "floor": ops.floor_divide, "trunc": ops.trunc_divide}
    return apply_promoted(modes[rounding_mode], x, y)


@converts("aten.floor_divide.Scalar")
def floor_divide(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    return apply_promoted(ops.floor_divide, x, y)


@converts("aten.remainder.Scalar_Tensor")
def remainder(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    return apply_promoted(ops.remainder, x, y)


@converts("aten.square.default")
def square(x: Node) -> Node:
    return apply_promoted(ops.mul, x, x)


@converts("aten.pow.Tensor_Scalar")
def pow_scalar(x: Node, exponent: float) -> Node:
    """Compute small powers by multiplication, roots and reciprocals, as PyTorch does."""
    dtype = common_dtype(x, exponent)
    x = as_node(x, dtype)
    if exponent == 1:
        return x
    if exponent in (2, 3):
        return ops.mul(x, x) if exponent == 2 else ops.mul(ops.mul(x, x), x)
    if not dtype.is_float:
        if isinstance(exponent, int) and 0 <= exponent <= 64:
            return _integer_power(x, exponent)
        return ops.integer_power(x, as_node(exponent, dtype))
    if exponent == 0.5:
        return ops.sqrt(x)
    if exponent == -0.5:
        return ops.rsqrt(x)
    if exponent == -1:
        return ops.reciprocal(x)
    return ops.reciprocal(ops.mul(x, x)) if exponent == -2 else ops.pow_(x, exponent)


def _integer_power(x: Node, exponent: int) -> Node:
    """Return `x ** exponent` by repeated squaring."""
    if exponent == 0:
        return ops.full(x.shape, 1, x.dtype)
    if exponent == 1:
        return x
    half = _integer_power(x, exponent // 2)
    square = ops.mul(half, half)
    return ops.mul(square, x) if exponent % 2 else square


@converts("aten.pow.Tensor_Tensor", "aten.pow.Scalar", "aten.float_power.Tensor_Scalar")
def power(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    if not common_dtype(x, y).is_float:
        return apply_promoted(ops.integer_power, x, y)
    return apply_promoted(ops.pow_, x, y)


@converts("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default")
def clamp(x: Node, min: TensorOrNumber | None = None, max: TensorOrNumber | None = None) -> Node:
    """Clamp to [min, max]; `max` wins if min > max, NaN stays NaN."""
    dtype = common_dtype(*(v for v in (x, min, max) if v is not None))
    y = as_node(x, dtype)
    y = y if min is None else ops.maximum(y, as_node(min, dtype))
    return y if max is None else ops.minimum(y, as_node(max, dtype))


@converts("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(x: Node, min: TensorOrNumber) -> Node:
    return clamp(x, min)


@converts("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(x: Node, max: TensorOrNumber) -> Node:
    return clamp(x, None, max)


@converts("aten.hardtanh.default")
def hardtanh(x: Node, min: float = -1, max: float = 1) -> Node:
    """Clamp to bounds in the dtype of `x`, even if that is an integer dtype."""
    return clamp(x, *((min, max) if x.dtype.is_float else (int(min), int(max))))


@converts("aten.relu6.default")
def relu6(x: Node) -> Node:
    return clamp(x, 0, 6)


def as_bool(x: TensorOrNumber) -> Node:
    """Return whether each element of `x` is non-zero."""
    return as_node(x, boolean)


@converts("aten.logical_and.default")
def logical_and(x: Node, y: Node) -> Node:
    return ops.and_(as_bool(x), as_bool(y))


@converts("aten.logical_or.default")
def logical_or(x: Node, y: Node) -> Node:
    return ops.or_(as_bool(x), as_bool(y))


@converts("aten.logical_xor.default")
def logical_xor(x: Node, y: Node) -> Node:
    return ops.xor(as_bool(x), as_bool(y))


@converts("aten.logical_not.default")
def logical_not(x: Node) -> Node:
    return ops.not_(as_bool(x))


@converts("aten.isnan.default")
def isnan(x: Node) -> Node:
    return ops.isnan(x) if x.dtype.is_float else ops.full(x.shape, False, boolean)


@converts("aten.isinf.default")
def isinf(x: Node) -> Node:
    return ops.isinf(x) if x.dtype.is_float else ops.full(x.shape, False, boolean)


@converts("aten.isfinite.default")
def isfinite(x: Node) -> Node:
    return ops.lt(ops.abs_(x), INF) if x.dtype.is_float else ops.full(x.shape, True, boolean)


@converts("aten.signbit.default")
def signbit(x: Node) -> Node:
    return ops.lt(ops.copysign(ops.full((), 1.0, x.dtype), x), 0.0) if x.dtype.is_float else ops.lt(as_node(x, i64), 0)


@converts("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(condition: Node, x: TensorOrNumber, y: TensorOrNumber) -> Node:
    dtype = common_dtype(x, y)
    return ops.where(as_bool(condition), as_node(x, dtype), as_node(y, dtype))


@converts("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(x: Node, mask: Node, value: TensorOrNumber) -> Node:
    return ops.where(mask, as_node(value, x.dtype), x)


@converts("prims.fma.default")
def fma(x: Node, y: Node, z: Node) -> Node:
    return ops.add(ops.mul(x, y), z)


@converts("aten.addcmul.default")
def addcmul(x: Node, a: Node, b: Node, value: TensorOrNumber = 1) -> Node:
    return add(x, apply_promoted(ops.mul, a, b), value)


@converts("aten.addcdiv.default")
def addcdiv(x: Node, a: Node, b: Node, value: TensorOrNumber = 1) -> Node:
    return add(x, apply_promoted(ops.div, a, b), value)


@converts("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(x: Node, end: Node, weight: TensorOrNumber) -> Node:
    """Interpolate from the nearer end, so that weight 1 gives `end` exactly."""
    span = apply_promoted(ops.sub, end, x)
    low = apply_promoted(ops.add, x, apply_promoted(ops.mul, span, weight))
    if not isinstance(weight, (Node, SymbolicScalar)):
        return low if abs(weight) < 0.5 else apply_promoted(ops.sub, end, apply_promoted(ops.mul, span, 1 - weight))  # type: ignore[arg-type]
    high = apply_promoted(ops.sub, end, apply_promoted(ops.mul, span, apply_promoted(ops.sub, 1, weight)))
    return ops.where(ops.lt(ops.abs_(as_node(weight)), 0.5), low, high)


@converts("aten.round.decimals")
def round_decimals(x: Node, decimals: int = 0) -> Node:
    scale = 10.0 ** abs(decimals)
    if decimals >= 0:
        return ops.div(ops.round_(ops.mul(x, scale)), scale)
    return ops.mul(ops.round_(ops.div(x, scale)), scale)


@converts("aten.celu.default")
def celu(x: Node, alpha: float = 1.0) -> Node:
    return ops.elu(x, alpha=float(alpha), scale=1.0, input_scale=1.0 / alpha)


@converts("aten.selu.default")
def selu(x: Node) -> Node:
    return ops.elu(x, alpha=1.6732632423543772, scale=1.0507009873554805)


@converts("aten.relu_.default")
def relu(x: Node) -> Node:
    return ops.relu(x)


@converts("aten.glu.default")
def glu(x: Node, dim: int = -1) -> Node:
    axis = dim % x.type.rank
    size = x.shape[axis] // 2
    a, b = (ops.slice_(x, dim=axis, start=start, size=size) for start in (0, size))
    return ops.mul(a, ops.sigmoid(b))


@converts("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(x: Node, weight: Node) -> Node:
    if weight.type.rank == 1 and x.type.rank > 1:
        weight = ops.reshape(weight, shape=(*weight.shape, *(1,) * (x.type.rank - 2)))
    return ops.where(ops.gt(x, 0), x, ops.mul(x, weight))


@converts("aten.hardshrink.default")
def hardshrink(x: Node, lambd: float = 0.5) -> Node:
    return ops.where(ops.and_(ops.ge(x, -lambd), ops.le(x, lambd)), 0.0, x)


@converts("aten.softshrink.default")
def softshrink(x: Node, lambd: float = 0.5) -> Node:
    below = ops.where(ops.lt(x, -lambd), ops.add(x, lambd), ops.mul(x, 0.0))  # NaN stays NaN
    return ops.where(ops.gt(x, lambd), ops.sub(x, lambd), below)


@converts("aten.threshold.default")
def threshold(x: Node, threshold: float, value: float) -> Node:
    return ops.where(ops.le(x, threshold), value, x)


@converts("aten.logit.default")
def logit(x: Node, eps: float | None = None) -> Node:
    x = as_float(x)
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return ops.log(ops.div(x, ops.sub(1.0, x)))


@converts("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    dtype = as_float(as_node(0, common_dtype(x, y))).dtype
    a, b = as_node(x, dtype), as_node(y, dtype)
    zero = ops.and_(ops.eq(a, 0.0), ops.not_(ops.isnan(b)))
    return ops.where(zero, 0.0, ops.mul(a, ops.log(b)))


@converts("aten.logaddexp.default")
def logaddexp(x: Node, y: Node) -> Node:
    largest = ops.maximum(x, y)
    difference = ops.neg(ops.abs_(ops.sub(x, y)))
    return ops.where(ops.eq(ops.abs_(largest), INF), largest, ops.add(largest, ops.log1p(ops.exp(difference))))


@converts("aten.hypot.default")
def hypot(x: Node, y: Node) -> Node:
    """Scale by the larger side, so that no square overflows."""
    a, b = ops.abs_(x), ops.abs_(y)
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    safe = ops.where(ops.eq(large, 0.0), 1.0, large)
    ratio = ops.div(small, safe)
    inf = ops.or_(ops.eq(a, INF), ops.eq(b, INF))
    return ops.where(inf, INF, ops.mul(large, ops.sqrt(ops.add(ops.mul(ratio, ratio), 1.0))))


@converts("aten.sinc.default", "aten.special_sinc.default")
def sinc(x: Node) -> Node:
    y = as_float(x)
    t = ops.mul(widen_half(y), math.pi)
    return ops.as_dtype(ops.where(ops.eq(t, 0.0), 1.0, ops.div(ops.sin(t), t)), y.dtype)


@converts("aten.nan_to_num.default")
def nan_to_num(x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Node:
    if not x.dtype.is_float:
        return x
    limits = torch.finfo(to_torch(x.dtype))
    y = ops.where(ops.isnan(x), 0.0 if nan is None else nan, x)
    y = ops.where(ops.eq(x, INF), limits.max if posinf is None else posinf, y)
    return ops.where(ops.eq(x, -INF), limits.min if neginf is None else neginf, y)


def _minmax_ignoring_nan(op: Op, x: TensorOrNumber, y: TensorOrNumber) -> Node:
    """Return the minimum or maximum of two tensors; NaN only if both are NaN."""
    dtype = common_dtype(x, y)
    if not dtype.is_float:
        return apply_promoted(op, x, y)
    a, b = as_node(x, dtype), as_node(y, dtype)
    return ops.where(ops.isnan(a), b, ops.where(ops.isnan(b), a, op(a, b)))


@converts("aten.fmax.default")
def fmax(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    return _minmax_ignoring_nan(ops.maximum, x, y)


@converts("aten.fmin.default")
def fmin(x: TensorOrNumber, y: TensorOrNumber) -> Node:
    return _minmax_ignoring_nan(ops.minimum, x, y)


@converts("aten.angle.default")
def angle(x: Node) -> Node:
    """Return the angle of a real number: 0, pi or NaN."""
    y = as_float(x)
    return ops.where(ops.isnan(y), y, ops.where(ops.lt(y, 0.0), math.pi, ops.full((), 0.0, y.dtype)))


@converts("aten.heaviside.default")
def heaviside(x: Node, values: Node) -> Node:
    one, zero = as_node(1, x.dtype), as_node(0, x.dtype)
    return ops.where(ops.eq(x, 0), values, ops.where(ops.gt(x, 0), one, zero))


@converts(
    "aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.contiguous.default", "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default", "aten.positive.default", "aten.lift.default", "aten.detach_.default",
)  # fmt: skip
def identity(x: Node) -> Node:
    """Return `x`: copies and aliases are the same value."""
    return x


@converts("aten.dropout.default", "aten.alpha_dropout.default", "aten.feature_dropout.default")
def dropout(x: Node, p: float, train: bool) -> Node:
    """Return `x`: dropout in training is decomposed before conversion."""
    if train and p > 0:
        raise ConversionError("dropout in training was not decomposed")
    return x


@converts("aten._to_copy.default", "aten.to.dtype", "aten.to.device", "aten.to.dtype_layout")
def to_copy(x: Node, *arguments: Any, dtype: torch.dtype | None = None, **placement: Any) -> Node:
    named = dtype or next((a for a in arguments if isinstance(a, torch.dtype)), None)
    return x if named is None else ops.as_dtype(x, from_torch(named))


@converts("prims.convert_element_type.default")
def convert_element_type(x: Node, dtype: torch.dtype) -> Node:
    return ops.as_dtype(x, from_torch(dtype))


@converts("aten.type_as.default")
def type_as(x: Node, other: Node) -> Node:
    return ops.as_dtype(x, other.dtype)


@converts("aten.view.dtype")
def view_dtype(x: Node, dtype: torch.dtype) -> Node:
    wanted = from_torch(dtype)
    if wanted.bytes != x.dtype.bytes:
        raise ConversionError(f"{dtype} has a different bit width than {x.dtype}")
    return x if wanted == x.dtype else ops.bitcast(x, dtype=wanted)


@converts("aten.copy.default")
def copy(x: Node, source: Node) -> Node:
    source = ops.as_dtype(source, x.dtype)
    return source if source.shape == x.shape else ops.expand(source, shape=x.shape)


@converts("aten.fill.Scalar", "aten.fill.Tensor")
def fill(x: Node, value: TensorOrNumber) -> Node:
    scalar = as_node(value, x.dtype)
    return ops.expand(scalar, shape=x.shape) if x.type.rank else scalar
