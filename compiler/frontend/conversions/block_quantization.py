"""Conversions of torchao's operators, whose scales and zero points belong to blocks, and of PyTorch's products with packed weights.

A block size for each dimension says which elements share a scale: the whole dimension, one element, or a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from compiler.frontend.conversions.elementwise import clamp
from compiler.frontend.conversions.quantization import check_scale, is_zero, round_and_shift
from compiler.frontend.conversions.views import view
from compiler.frontend.promotion import apply_promoted, as_node
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.float_format import Array
from compiler.ir.graph.node import CONSTANT, Node, constant_node
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.torch_types import from_torch, to_torch
from compiler.ir.types import f32, i32

Shape = tuple[Dim, ...]


def _split_blocks(x: Node, block_size: Sequence[int]) -> tuple[Shape, Shape, tuple[int, ...]]:
    """Return the shape of `x` with groups as dimensions of their own, the same with 1 inside blocks, and those dimensions."""
    if len(block_size) != x.type.rank:
        raise ConversionError(f"blocks of {list(block_size)} do not match a tensor of {x.type.rank} dimensions")
    split: list[Dim] = []
    inside: list[int] = []
    for size, block in zip(x.shape, block_size, strict=True):
        if block not in (1, size):
            if block < 1 or size % block != 0:
                raise ConversionError(f"groups of {block} do not divide a dimension of {size}")
            split += [size // block]
        if block != 1:
            inside.append(len(split))
        split += [block if block not in (1, size) else size]
    return tuple(split), tuple(1 if k in inside else d for k, d in enumerate(split)), tuple(inside)


def _parameter(values: Node, shape: Shape) -> Node:
    """Return scales or zero points in the shape of the blocks."""
    count = product(shape)
    if values.type.numel != count:
        raise ConversionError(f"scales and zero points of shape {list(values.shape)} do not match {count} blocks")
    return view(values, shape)


def _limits(dtype: torch.dtype, low: float | None, high: float | None) -> tuple[float, float]:
    """Return the range of quantized values, by default that of `dtype`; ConversionError for a dtype without one."""
    if low is not None and high is not None:
        return low, high
    kind = from_torch(dtype)
    if kind.is_opaque or not (kind.is_integer or kind.is_float):
        raise ConversionError(f"the range of {dtype} is not known; pass quant_min and quant_max")
    info = torch.finfo(dtype) if kind.is_float else torch.iinfo(dtype)
    return info.min if low is None else low, info.max if high is None else high


@converts("torchao.quantize_affine.default")
def quantize_affine(
    x: Node, block_size: Sequence[int], scale: Node, zero_point: Node | None, output_dtype: torch.dtype,
    quant_min: float | None = None, quant_max: float | None = None,
) -> Node:  # fmt: skip
    split, reduced, _ = _split_blocks(x, block_size)
    zero_point = _parameter(zero_point, reduced) if zero_point is not None and zero_point.type.numel else None
    limits = _limits(output_dtype, quant_min, quant_max)
    y = round_and_shift(view(x, split), _parameter(scale, reduced), zero_point, limits)
    return view(ops.as_dtype(y, from_torch(output_dtype)), x.shape)


@converts("torchao.dequantize_affine.default")
def dequantize_affine(
    q: Node, block_size: Sequence[int], scale: Node, zero_point: Node | None, input_dtype: torch.dtype,
    quant_min: float | None = None, quant_max: float | None = None, output_dtype: torch.dtype = torch.float32,
) -> Node:  # fmt: skip
    split, reduced, _ = _split_blocks(q, block_size)
    wide = from_torch(output_dtype)
    zero_point = None if zero_point is None else ops.as_dtype(_parameter(zero_point, reduced), wide)
    scale = _parameter(scale, reduced)
    shifted = view(q, split)
    if zero_point is not None and not is_zero(zero_point):
        shifted = ops.sub(ops.as_dtype(shifted, wide), zero_point)
    check_scale(scale, divides=False)
    return view(ops.as_dtype(apply_promoted(ops.mul, ops.as_dtype(shifted, wide), scale), wide), q.shape)


@converts("torchao.choose_qparams_affine.default")
def choose_qparams_affine(
    x: Node, mapping_type: str, block_size: Sequence[int], target_dtype: torch.dtype, quant_min: float | None = None,
    quant_max: float | None = None, eps: float | None = None, scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None, keepdim: bool = False,
) -> tuple[Node, Node]:  # fmt: skip
    """Return scales and zero points of the range of each block, widened to hold 0."""
    low, high = _limits(target_dtype, quant_min, quant_max)
    split, _, inside = _split_blocks(x, block_size)
    blocks = view(x, split)
    least = ops.minimum(ops.amin(blocks, dims=inside, keepdim=keepdim), 0.0)
    most = ops.maximum(ops.amax(blocks, dims=inside, keepdim=keepdim), 0.0)
    smallest = torch.finfo(to_torch(x.dtype)).smallest_normal if eps is None else eps
    zero: Node | None = None
    if mapping_type == "SYMMETRIC":
        scale = ops.div(ops.maximum(ops.neg(least), most), (high - low) / 2)
    elif mapping_type == "SYMMETRIC_NO_CLIPPING_ERR":
        below, above = ops.div(least, float(low)), ops.div(most, float(high))
        scale = ops.where(ops.gt(below, above), below, above)
    elif mapping_type == "ASYMMETRIC":
        scale = ops.div(ops.sub(most, least), float(high - low))
    else:
        raise ConversionError(f"mapping type {mapping_type} is not known")
    scale = clamp(scale, smallest)
    if mapping_type == "ASYMMETRIC":
        zero = clamp(ops.sub(as_node(low, x.dtype), ops.round_(ops.div(least, scale))), low, high)
        zero_point_dtype = zero_point_dtype or torch.int32
    else:
        zero = ops.full(scale.shape, int((high + low + 1) / 2), scale.dtype)
    shape = tuple(d // b for d, b in zip(x.shape, block_size, strict=True)) if keepdim else scale.shape
    scale_type = scale.dtype if scale_dtype is None else from_torch(scale_dtype)
    zero_type = zero.dtype if zero_point_dtype is None else from_torch(zero_point_dtype)
    return ops.as_dtype(view(scale, shape), scale_type), ops.as_dtype(view(zero, shape), zero_type)


# floats of 8 bits


def _spread(scale: Node, x: Node) -> Node:
    """Return a scale for each element of `x`, or scales that broadcast; each is repeated for its block."""
    if scale.type.numel == 1 or all(a in (b, 1) for a, b in zip(scale.shape, x.shape, strict=False)):
        return scale
    if scale.type.rank != x.type.rank or any(d % s != 0 for d, s in zip(x.shape, scale.shape, strict=True)):
        raise ConversionError(f"scales of shape {list(scale.shape)} do not divide a tensor of {x.type}")
    blocks = [d // s for d, s in zip(x.shape, scale.shape, strict=True)]
    with_unit_dims = view(scale, tuple(d for s in scale.shape for d in (s, 1)))
    repeated = ops.expand(
        with_unit_dims, shape=tuple(d for s, b in zip(scale.shape, blocks, strict=True) for d in (s, b))
    )
    return view(repeated, x.shape)


@converts("torchao.quantize_affine_float8_non_decomposed.default")
def quantize_float8(x: Node, scale: Node, float8_dtype: torch.dtype = torch.float8_e4m3fn) -> Node:
    check_scale(scale, divides=True)
    largest = torch.finfo(float8_dtype).max
    scaled = apply_promoted(ops.div, ops.as_dtype(x, f32), _spread(scale, x))
    return ops.as_dtype(clamp(scaled, -largest, largest), from_torch(float8_dtype))


@converts("torchao.dequantize_affine_float8_non_decomposed.default")
def dequantize_float8(q: Node, scale: Node, output_dtype: torch.dtype = torch.float32) -> Node:
    check_scale(scale, divides=False)
    return ops.as_dtype(apply_promoted(ops.mul, ops.as_dtype(q, f32), _spread(scale, q)), from_torch(output_dtype))


# products


@converts("aten._int_mm.default", "torchao.int_matmul.default")
def integer_matmul(x: Node, y: Node) -> Node:
    """Multiply matrices of bytes, signed or not, with sums in i32."""
    return ops.matmul(x, y, dtype=i32)


@converts("torchao.int_scaled_matmul.default")
def scaled_integer_matmul(x: Node, y: Node, scale: Node) -> Node:
    """Multiply matrices of bytes and scale each row."""
    return apply_promoted(ops.mul, integer_matmul(x, y), scale)


@converts("aten._weight_int8pack_mm.default")
def int8_weight_matmul(x: Node, weight: Node, scales: Node) -> Node:
    """Multiply by the transpose of a matrix of i8 that has a scale for each row; the sum is rounded once."""
    check_scale(scales, divides=False)
    product = ops.matmul(x, ops.transpose(weight, 0, 1), dtype=f32)
    return ops.as_dtype(ops.mul(product, ops.as_dtype(scales, f32)), x.dtype)


INT4_BLOCKS = {"AVX512": 64, "AVX2": 32}
"""Rows that PyTorch packs together in matrices of 4-bit integers, by the capability of the CPU (ATen/native/cpu/int4mm_kernel.cpp)."""


@converts("aten._weight_int4pack_mm_for_cpu.default")
def int4_weight_matmul(x: Node, packed: Node, group_size: int, scales_and_zeros: Node) -> Node:
    """Multiply by the transpose of (q - 8) * scale + zero, where q is a matrix that PyTorch packed for this CPU."""
    rows, inner = packed.shape[0], x.shape[-1]
    if packed.op is not CONSTANT or not isinstance(inner, int):
        raise ConversionError("4-bit weights must be constants: their packing is undone at compile time")
    if inner % group_size != 0 or scales_and_zeros.shape != (inner // group_size, rows, 2):
        have = list(scales_and_zeros.shape)
        raise ConversionError(f"scales of shape {have} do not match groups of {group_size} in {rows} rows of {inner}")
    check_scale(scales_and_zeros, divides=False)
    codes = constant_node(_unpack_int4(packed.attrs["value"].array, inner), loc=packed.loc)
    groups = (rows, inner // group_size, group_size)
    scale, zero = (
        ops.as_dtype(ops.unsqueeze(ops.transpose(ops.select(scales_and_zeros, 2, k), 0, 1), 2), f32) for k in (0, 1)
    )
    weight = ops.add(ops.mul(ops.as_dtype(ops.reshape(codes, shape=groups), f32), scale), zero)
    transposed = ops.transpose(ops.reshape(weight, shape=(rows, inner)), 0, 1)
    return ops.as_dtype(ops.matmul(x, transposed, dtype=f32), x.dtype)


def _unpack_int4(packed: Array, inner: int) -> Array:
    """Return the integers of -8..7 that `aten._convert_weight_to_int4pack_for_cpu` packed, i8[rows, inner].

    A byte holds two rows: those half a block apart in whole blocks, neighbours in the rows that remain.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in INT4_BLOCKS:
        raise ConversionError(f"how PyTorch packs 4-bit weights on a CPU of capability {capability} is not known")
    rows, block = len(packed), INT4_BLOCKS[capability]
    whole = rows // block * block
    parts = []
    for start, stop, size in ((0, whole, block), (whole, rows, rows - whole)):
        if start < stop:
            pairs = packed[start:stop].reshape(-1, inner, size // 2)
            halves = np.stack([pairs & 15, pairs >> 4], axis=2 if size == block and start == 0 else 3)
            parts.append(halves.reshape(-1, inner, size).swapaxes(1, 2).reshape(-1, inner))
    return np.concatenate(parts).astype(np.int8) - np.int8(8)
