"""Conversions of `quantized_decomposed` and of fake quantization: the graphs that PyTorch 2 Export quantization leaves.

Quantizing is round(x / scale) + zero_point, clamped and converted to integers; dequantizing is (q - zero_point) * scale.
Each conversion rounds where PyTorch's reference does, so that the integers have the same bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from compiler.analysis.quantized_value import is_known, is_known_zero
from compiler.frontend.conversions.elementwise import clamp, sub
from compiler.frontend.conversions.reductions import aminmax
from compiler.frontend.conversions.views import canonicalize_dim, view
from compiler.frontend.opaque_ops import QUANTIZED_TENSOR_OPERATORS
from compiler.frontend.promotion import TensorOrNumber, apply_promoted, as_node, common_dtype
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import from_torch, to_torch
from compiler.ir.types import DType, boolean, f32, f64, i32, i64, u8

Range = tuple[TensorOrNumber, TensorOrNumber]
"""Smallest and largest quantized value."""


def check_scale(scale: TensorOrNumber, divides: bool) -> None:
    """Raise ConversionError for a scale, if known, that is NaN or infinite, or negative or zero where `divides`."""
    if isinstance(scale, Node) and not is_known(scale):
        return
    value = interpret(Graph((), (scale,)), ())[0] if isinstance(scale, Node) else torch.tensor(scale)
    values = value.double().flatten()
    valid = values.isfinite() & ((values > 0) | (not divides))
    if not valid.all():
        rule = "scales must be positive and finite" if divides else "scales must be finite"
        raise ConversionError(f"the scale is {float(values[~valid][0]):.6g}; {rule}")


def is_zero(zero_point: TensorOrNumber | None) -> bool:
    """Return True if a zero point is absent, or known to be zero."""
    return is_known_zero(zero_point) if isinstance(zero_point, Node) else zero_point in (None, 0)


def round_and_shift(
    x: Node, scale: TensorOrNumber, zero_point: TensorOrNumber | None, limits: Range, *, round_last: bool = False
) -> Node:
    """Return `x` on the grid of the quantized values, as floats.

    The reference multiplies by 1 / scale.  With `round_last`, it adds the zero point before it rounds.
    """
    check_scale(scale, divides=True)
    inverse = apply_promoted(ops.reciprocal, scale) if isinstance(scale, Node) else 1.0 / scale  # type: ignore[operator]
    y = apply_promoted(ops.mul, x, inverse)
    y = y if round_last else ops.round_(y)
    if not is_zero(zero_point):
        y = apply_promoted(ops.add, y, zero_point)
    return clamp(ops.round_(y) if round_last else y, *limits)


def shift_and_scale(q: Node, scale: TensorOrNumber, zero_point: TensorOrNumber | None, dtype: DType) -> Node:
    """Return (q - zero_point) * scale, computed in `dtype`; narrow integers are subtracted as such and wrap."""
    check_scale(scale, divides=False)
    if not is_zero(zero_point):
        assert zero_point is not None
        narrow = isinstance(zero_point, Node) and not (d := common_dtype(q, zero_point)).is_float and d.bits < 32
        q = sub(q, zero_point) if narrow else ops.sub(as_node(q, dtype), as_node(zero_point, dtype))
    wide = dtype if isinstance(scale, Node) and scale.type.rank else dtype.compute  # numbers are not rounded to bf16
    return ops.as_dtype(ops.mul(as_node(as_node(q, dtype), wide), as_node(scale, wide)), dtype)


def check_quantized(q: Node, dtype: torch.dtype) -> None:
    """Raise ConversionError unless `q` has the dtype that the operator declares."""
    if q.dtype != from_torch(dtype):
        raise ConversionError(f"the quantized tensor is {to_torch(q.dtype)}, but {dtype} is declared")


def as_f32(x: Node) -> Node:
    """Return `x` in f32; ConversionError for f64 and integers, which PyTorch does not quantize."""
    if not x.dtype.is_float or x.dtype.bits > 32:
        raise ConversionError(f"a tensor of {to_torch(x.dtype)} cannot be quantized; convert it to torch.float32")
    return ops.as_dtype(x, f32)


def along(values: Node, axis: int, x: Node) -> Node:
    """Return `values`, one for each index of dimension `axis` of `x`, in a shape that broadcasts."""
    if not -x.type.rank <= axis < x.type.rank:
        raise ConversionError(f"axis {axis} is out of range for a tensor of {x.type.rank} dimensions")
    axis = canonicalize_dim(axis, x.type.rank)
    if values.type.rank != 1 or values.shape[0] != x.shape[axis]:
        have = list(values.shape)
        raise ConversionError(f"scales and zero points of shape {have} do not match {x.shape[axis]} channels")
    return view(values, tuple(d if k == axis else 1 for k, d in enumerate(x.shape)))


def one_element(x: TensorOrNumber, dtype: DType) -> TensorOrNumber:
    """Return the number in a tensor of one element: a Python number if it is constant, else of rank 0 in `dtype`."""
    if not isinstance(x, Node):
        return x
    if x.type.numel != 1:
        raise ConversionError(f"a scale or zero point for the whole tensor has shape {list(x.shape)}")
    value = scalar_value(x)
    return ops.as_dtype(view(x, ()), dtype) if value is None else value


# one scale for the whole tensor


@converts(
    "quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)  # fmt: skip
def quantize_per_tensor(
    x: Node, scale: TensorOrNumber, zero_point: TensorOrNumber, low: TensorOrNumber, high: TensorOrNumber, dtype: torch.dtype
) -> Node:  # fmt: skip
    scale, zero_point = one_element(scale, f64), one_element(zero_point, i64)
    limits = one_element(low, i64), one_element(high, i64)
    return ops.as_dtype(round_and_shift(as_f32(x), scale, zero_point, limits), from_torch(dtype))


@converts(
    "quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)  # fmt: skip
def dequantize_per_tensor(
    q: Node, scale: TensorOrNumber, zero_point: TensorOrNumber, low: TensorOrNumber, high: TensorOrNumber, dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Node:  # fmt: skip
    check_quantized(q, dtype)
    wide = f32 if out_dtype is None else from_torch(out_dtype)
    return shift_and_scale(ops.as_dtype(q, wide), one_element(scale, f64), one_element(zero_point, i64), wide)


def _choose_qparams(symmetric: bool, x: Node, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Node, Node]:
    """Return scale, f64[1], and zero point, i64[1], of the range of `x`, widened to hold 0."""
    if low >= high:
        raise ConversionError(f"the range {low}..{high} of the quantized values is empty")
    smallest, largest = aminmax(x)
    least, most = ops.minimum(smallest, 0.0), ops.maximum(largest, 0.0)
    if symmetric:
        widest, steps = ops.maximum(ops.neg(least), most), (high - low) / 2
    else:
        widest, steps = ops.sub(most, least), float(high - low)
    scale = ops.maximum(ops.as_dtype(ops.div(widest, steps), f32), eps)
    if symmetric:
        zero_point = ops.full((1,), 128 if from_torch(dtype) == u8 else 0, i64)
    else:
        offset = ops.as_dtype(ops.round_(ops.div(ops.as_dtype(least, f32), scale)), i32)
        zero_point = view(ops.as_dtype(clamp(ops.sub(as_node(low, i32), offset), low, high), i64), (1,))
    return view(ops.as_dtype(scale, f64), (1,)), zero_point


converts("quantized_decomposed.choose_qparams.tensor")(partial(_choose_qparams, False))
converts("quantized_decomposed.choose_qparams_symmetric.tensor")(partial(_choose_qparams, True))


# one scale for each channel


@converts("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    x: Node, scales: Node, zero_points: Node, axis: int, low: int, high: int, dtype: torch.dtype
) -> Node:
    scales, zero_points = along(scales, axis, x), along(zero_points, axis, x)
    return ops.as_dtype(round_and_shift(as_f32(x), scales, zero_points, (low, high)), from_torch(dtype))


@converts("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    q: Node, scales: Node, zero_points: Node | None, axis: int, low: int, high: int, dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> Node:  # fmt: skip
    check_quantized(q, dtype)
    zero_points = None if zero_points is None else along(zero_points, axis, q)
    wide = shift_and_scale(q, along(scales, axis, q), zero_points, scales.dtype)
    return ops.as_dtype(wide, f32 if out_dtype is None else from_torch(out_dtype))


def _groups(x: Node, scales: Node, zero_points: Node | None, group_size: int) -> tuple[Dim, ...]:
    """Return the shape [groups, elements] of a matrix whose rows are divided into groups, one for each scale."""
    if x.type.rank != 2 or group_size <= 1:
        raise ConversionError(f"takes a matrix and groups of at least 2, not {x.type} and {group_size}")
    columns = x.shape[1]
    size = columns if scales.type.rank and scales.shape[-1] == 1 and group_size > columns else group_size
    if columns % size != 0:
        raise ConversionError(f"groups of {size} do not divide rows of {columns}")
    count = x.type.numel // size
    for name, values in (("scales", scales), ("zero points", zero_points)):
        if values is not None and values.type.numel != count:
            raise ConversionError(f"{name} of shape {list(values.shape)} do not match {count} groups")
    return count, size


@converts("quantized_decomposed.quantize_per_channel_group.default")
def quantize_per_channel_group(
    x: Node, scales: Node, zero_points: Node, low: int, high: int, dtype: torch.dtype, group_size: int = 128
) -> Node:
    groups = _groups(x, scales, zero_points, group_size)
    scales, zero_points = (view(v, (groups[0], 1)) for v in (scales, zero_points))
    y = round_and_shift(view(x, groups), scales, zero_points, (low, high), round_last=True)
    return view(ops.as_dtype(y, from_torch(dtype)), x.shape)


@converts("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    q: Node, scales: Node, zero_points: Node | None, low: int, high: int, dtype: torch.dtype, group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Node:  # fmt: skip
    groups = _groups(q, scales, zero_points, group_size)
    zero_points = None if zero_points is None else view(zero_points, (groups[0], 1))
    wide = shift_and_scale(view(q, groups), view(scales, (groups[0], 1)), zero_points, scales.dtype)
    return ops.as_dtype(view(wide, q.shape), from_torch(output_dtype))


# one scale for each token: the vectors along the last dimension


@converts("quantized_decomposed.choose_qparams_per_token.default")
def choose_qparams_per_token(x: Node, dtype: torch.dtype) -> tuple[Node, Node]:
    """Return symmetric scales in f64, the dtype that PyTorch infers, and zeros."""
    if dtype != torch.int8:
        raise ConversionError(f"scales for {dtype} are not supported; use torch.int8")
    largest = ops.amax(ops.abs_(x), dims=(x.type.rank - 1,), keepdim=True)
    scales = ops.div(ops.maximum(ops.as_dtype(largest, f32) if x.dtype.name == "f16" else largest, 1e-5), 127.0)
    return ops.as_dtype(scales, f64), ops.full(scales.shape, 0, i64)


@converts(
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default",
    "quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default",
)
def choose_qparams_per_token_asymmetric(x: Node, dtype: torch.dtype) -> tuple[Node, Node]:
    """Return scales and zero points as XNNPACK chooses them: the end of the range with the smaller error stays exact."""
    low, high = -128, 127
    smallest, largest = aminmax(x, -1, keepdim=True)
    least, most = ops.minimum(smallest, 0.0), ops.maximum(largest, 0.0)
    scale = ops.maximum(ops.div(ops.sub(most, least), float(high - low)), torch.finfo(torch.float32).eps)
    steps_below, steps_above = ops.div(least, scale), ops.div(most, scale)
    errors = ops.add(ops.add(steps_below, low), ops.add(steps_above, high))
    zero_point = ops.where(
        ops.gt(errors, 0.0), apply_promoted(ops.sub, low, steps_below), apply_promoted(ops.sub, high, steps_above)
    )
    return ops.as_dtype(scale, f64), ops.as_dtype(ops.round_(clamp(zero_point, low, high)), i64)


def check_tokens(x: Node, *parameters: Node) -> None:
    """Raise ConversionError unless each parameter has one element for each vector along the last dimension."""
    for p in parameters:
        if p.shape != (*x.shape[:-1], 1):
            raise ConversionError(f"scales and zero points of shape {list(p.shape)} do not match tokens of {x.type}")


@converts("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    x: Node, scales: Node, zero_points: Node, low: int, high: int, dtype: torch.dtype
) -> Node:  # fmt: skip
    check_tokens(x, scales, zero_points)
    y = round_and_shift(x, scales, zero_points, (low, high), round_last=True)
    return ops.as_dtype(y, from_torch(dtype))


@converts("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    q: Node, scales: Node, zero_points: Node, low: int, high: int, dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Node:  # fmt: skip
    check_tokens(q, scales, zero_points)
    return ops.as_dtype(shift_and_scale(q, scales, zero_points, scales.dtype), from_torch(output_dtype))


# fake quantization: quantize and dequantize at once


def _fake_quantize(
    x: Node, scale: TensorOrNumber, zero_point: TensorOrNumber, low: int, high: int
) -> tuple[Node, Node]:
    """Return `x` rounded to quantized values, and whether each element is inside their range.  NaN becomes the smallest."""
    check_scale(scale, divides=True)
    wide = ops.as_dtype(x, f32)
    inverse = apply_promoted(ops.reciprocal, scale) if isinstance(scale, Node) else 1.0 / np.float32(scale)  # type: ignore[arg-type]
    steps = apply_promoted(ops.add, ops.round_(apply_promoted(ops.mul, wide, inverse)), zero_point)
    inside = ops.and_(ops.ge(steps, float(low)), ops.le(steps, float(high)))
    kept = ops.where(ops.isnan(steps), float(low), clamp(steps, low, high))
    return ops.as_dtype(shift_and_scale(kept, scale, zero_point, f32), x.dtype), inside


@converts("aten.fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize_with_mask(x: Node, scale: float, zero_point: int, low: int, high: int) -> tuple[Node, Node]:
    return _fake_quantize(x, scale, zero_point, low, high)


@converts("aten.fake_quantize_per_tensor_affine.default", "aten.fake_quantize_per_tensor_affine.tensor_qparams")
def fake_quantize_per_tensor(x: Node, scale: TensorOrNumber, zero_point: TensorOrNumber, low: int, high: int) -> Node:
    return _fake_quantize(x, one_element(scale, f32), one_element(zero_point, i32), low, high)[0]


@converts("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_if_enabled(
    x: Node, scale: Node, zero_point: Node, enabled: Node, low: int, high: int
) -> tuple[Node, Node]:
    y, inside = _fake_quantize(x, one_element(scale, f32), one_element(zero_point, i32), low, high)
    on = ops.as_dtype(view(enabled, ()), boolean)
    return ops.where(on, y, x), ops.or_(inside, ops.not_(on))


@converts("aten.fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize_channels_with_mask(
    x: Node, scale: Node, zero_point: Node, axis: int, low: int, high: int
) -> tuple[Node, Node]:
    return _fake_quantize(x, along(scale, axis, x), along(zero_point, axis, x), low, high)


@converts("aten.fake_quantize_per_channel_affine.default", "quantized_decomposed.fake_quant_per_channel.default")
def fake_quantize_per_channel(x: Node, scale: Node, zero_point: Node, axis: int, low: int, high: int) -> Node:
    return fake_quantize_channels_with_mask(x, scale, zero_point, axis, low, high)[0]


@converts("quantized_decomposed.convert_element_type.no_fuse")
def convert_without_fusion(x: Node, dtype: torch.dtype) -> Node:
    return ops.as_dtype(x, from_torch(dtype))


@converts(*sorted(QUANTIZED_TENSOR_OPERATORS))
def refuse_quantized_tensors(*arguments: Any, **options: Any) -> Node:
    raise ConversionError("tensors of quantized dtypes are not supported; quantize the model with torchao")
