"""Conversions of elementwise operators whose arguments do not map one to one to an op."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from compiler.frontend.promotion import (
    SymbolicScalar,
    TensorOrNumber,
    apply_promoted,
    as_float,
    as_node,
    common_dtype,
)
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.torch_types import from_torch
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


@converts("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: TensorOrNumber, y: TensorOrNumber, rounding_mode: str | None = None) -> Node:
    modes = {None: ops.div, "floor": ops.floor_divide, "trunc": ops.trunc_divide}
    return apply_promoted(modes[rounding_mode], x, y)


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


@converts("aten.hardtanh.default")
def hardtanh(x: Node, min: float = -1, max: float = 1) -> Node:
    """Clamp to bounds in the dtype of `x`, even if that is an integer dtype."""
    return clamp(x, *((min, max) if x.dtype.is_float else (int(min), int(max))))


def as_bool(x: TensorOrNumber) -> Node:
    """Return whether each element of `x` is non-zero."""
    return as_node(x, boolean)


def _logical(op: Op, *operands: Node) -> Node:
    return op(*map(as_bool, operands))


converts("aten.logical_and.default")(partial(_logical, ops.and_))
converts("aten.logical_or.default")(partial(_logical, ops.or_))
converts("aten.logical_xor.default")(partial(_logical, ops.xor))
converts("aten.logical_not.default")(partial(_logical, ops.not_))


@converts("aten.signbit.default")
def signbit(x: Node) -> Node:
    return ops.lt(ops.copysign(ops.full((), 1.0, x.dtype), x), 0.0) if x.dtype.is_float else ops.lt(as_node(x, i64), 0)


@converts("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(condition: Node, x: TensorOrNumber, y: TensorOrNumber) -> Node:
    dtype = common_dtype(x, y)
    return ops.where(as_bool(condition), as_node(x, dtype), as_node(y, dtype))


@converts("prims.fma.default")
def fma(x: Node, y: Node, z: Node) -> Node:
    return ops.add(ops.mul(x, y), z)


@converts("aten.round.decimals")
def round_decimals(x: Node, decimals: int = 0) -> Node:
    scale = 10.0 ** abs(decimals)
    if decimals >= 0:
        return ops.div(ops.round_(ops.mul(x, scale)), scale)
    return ops.mul(ops.round_(ops.div(x, scale)), scale)


@converts("aten.celu.default")
def celu(x: Node, alpha: float = 1.0) -> Node:
    return ops.elu(x, alpha=float(alpha), scale=1.0, input_scale=1.0 / alpha)


@converts("aten.hypot.default")
def hypot(x: Node, y: Node) -> Node:
    """Scale by the larger side, so that no square overflows."""
    a, b = ops.abs_(x), ops.abs_(y)
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    safe = ops.where(ops.eq(large, 0.0), 1.0, large)
    ratio = ops.div(small, safe)
    inf = ops.or_(ops.eq(a, INF), ops.eq(b, INF))
    return ops.where(inf, INF, ops.mul(large, ops.sqrt(ops.add(ops.mul(ratio, ratio), 1.0))))


def _minmax_ignoring_nan(op: Op, x: TensorOrNumber, y: TensorOrNumber) -> Node:
    """Return the minimum or maximum of two tensors; NaN only if both are NaN."""
    dtype = common_dtype(x, y)
    if not dtype.is_float:
        return apply_promoted(op, x, y)
    a, b = as_node(x, dtype), as_node(y, dtype)
    return ops.where(ops.isnan(a), b, ops.where(ops.isnan(b), a, op(a, b)))


converts("aten.fmax.default")(partial(_minmax_ignoring_nan, ops.maximum))
converts("aten.fmin.default")(partial(_minmax_ignoring_nan, ops.minimum))


@converts("aten.angle.default")
def angle(x: Node) -> Node:
    """Return the angle of a real number: 0, pi or NaN."""
    y = as_float(x)
    return ops.where(ops.isnan(y), y, ops.where(ops.lt(y, 0.0), math.pi, ops.full((), 0.0, y.dtype)))


@converts(
    "aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.detach_copy.default", "aten.contiguous.default",
    "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.positive.default", "aten.lift.default", "aten.detach_.default",
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
