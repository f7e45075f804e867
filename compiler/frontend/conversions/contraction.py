"""Matrix products, convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from compiler.frontend.conversions.elementwise import add as add_scaled
from compiler.frontend.conversions.pooling import per_dim
from compiler.frontend.conversions.quantization import check_scale
from compiler.frontend.conversions.views import view
from compiler.frontend.promotion import (
    SymbolicScalar,
    TensorOrNumber,
    apply_promoted,
    as_node,
    truncate_scalar,
    widen_half,
)
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, floordiv
from compiler.ir.torch_types import from_torch
from compiler.ir.types import f32, f64, i64


@converts("aten.linear.default")
def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    if weight.type.rank == 1:
        return view(linear(x, ops.unsqueeze(weight, 0), None if bias is None else view(bias, (1,))), x.shape[:-1])
    return ops.linear(*(v for v in (x, weight, bias) if v is not None))


@converts("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.linalg_matmul.default")
def matmul(x: Node, y: Node) -> Node:
    """Multiply matrices or batches of them; a vector is a row on the left and a column on the right."""
    rows = x if x.type.rank > 1 else ops.unsqueeze(x, 0)
    columns = y if y.type.rank > 1 else ops.unsqueeze(y, 1)
    product = ops.matmul(rows, columns)
    if x.type.rank > 1 and y.type.rank > 1:
        return product
    *batch, m, n = product.shape
    return view(product, (*batch, *((m,) if x.type.rank > 1 else ()), *((n,) if y.type.rank > 1 else ())))


@converts("aten._scaled_mm.default")
def scaled_matmul(
    x: Node, y: Node, scale_x: Node, scale_y: Node, bias: Node | None = None, scale_result: Node | None = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Node:  # fmt: skip
    """Multiply matrices of float8 with one scale for each, or one for each row of `x` and each column of `y`."""
    if scale_result is not None or not (_scales(scale_x, (x.shape[0], 1)) and _scales(scale_y, (1, y.shape[1]))):
        raise ConversionError("only scales of whole operands, rows and columns are supported, and none of the result")
    for scale in (scale_x, scale_y):
        check_scale(scale, divides=False)
    same = x.dtype == y.dtype
    operands = (x, y) if same else (ops.as_dtype(x, f32), ops.as_dtype(y, f32))
    product = ops.mul(ops.mul(ops.matmul(*operands, dtype=f32), _as_scale(scale_x)), _as_scale(scale_y))
    total = product if bias is None else ops.add(product, ops.as_dtype(bias, f32))
    return ops.as_dtype(total, x.dtype if out_dtype is None else from_torch(out_dtype))


def _scales(scale: Node, shape: tuple[Dim, Dim]) -> bool:
    return scale.shape == shape or scale.type.numel == 1


def _as_scale(scale: Node) -> Node:
    return view(scale, ()) if scale.type.numel == 1 else scale


@converts("aten.mv.default", "aten.dot.default", "aten.vdot.default", "aten.inner.default")
def dot(x: Node, y: Node) -> Node:
    if max(x.type.rank, y.type.rank) > 1 and y.type.rank > 1:
        raise ConversionError("inner products of matrices are not supported; use torch.matmul")
    return matmul(x, y)


@converts("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default", "aten._sparse_addmm.default")
def addmm(bias: Node, x: Node, y: Node, beta: TensorOrNumber = 1, alpha: TensorOrNumber = 1) -> Node:
    """Compute beta * bias + alpha * x @ y, rounded once.

    With beta 0, `bias` is ignored even if NaN.  Factors of integers are rounded toward zero.
    """
    dtype = x.dtype
    beta, alpha = truncate_scalar(beta, dtype), truncate_scalar(alpha, dtype)
    column = y.type.rank == 1
    product = ops.matmul(x, ops.unsqueeze(y, 1) if column else y, dtype=f32 if dtype.is_reduced_float else None)
    product = view(product, product.shape[:-1]) if column else product
    if alpha != 1:
        product = ops.mul(product, alpha)  # type: ignore[arg-type]
    if beta == 0:
        return ops.as_dtype(product, dtype)
    return ops.as_dtype(add_scaled(product, ops.as_dtype(bias, product.dtype), beta), dtype)


@converts("aten.addbmm.default")
def addbmm(bias: Node, x: Node, y: Node, beta: TensorOrNumber = 1, alpha: TensorOrNumber = 1) -> Node:
    """Compute the sum of a batch of products as one product over the flattened batch and inner dimension."""
    (batch, rows, inner), columns = x.shape, y.shape[2]
    wide = ops.reshape(ops.transpose(x, 0, 1), shape=(rows, batch * inner))
    return addmm(bias, wide, ops.reshape(y, shape=(batch * inner, columns)), beta, alpha)


@converts("aten._trilinear.default")
def trilinear(
    x: Node, y: Node, z: Node, expand_x: Sequence[int], expand_y: Sequence[int], expand_z: Sequence[int], sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Node:  # fmt: skip
    """Multiply three tensors, each unsqueezed at its own dimensions first, and sum over `sumdim`."""
    spread = []
    for operand, dims in ((x, expand_x), (y, expand_y), (z, expand_z)):
        for d in sorted(dims):
            operand = ops.unsqueeze(operand, d)
        spread.append(operand)
    total = ops.mul(ops.mul(spread[0], spread[1]), spread[2])
    return ops.sum_(total, dims=tuple(sorted(sumdim))) if len(sumdim) else total


@converts("aten._grouped_mm.default")
def grouped_matmul(
    x: Node, y: Node, offs: Node | None = None, bias: Node | None = None, out_dtype: torch.dtype | None = None
) -> Node:
    """Multiply group by group; `offs` holds the exclusive end of each group of rows, columns or inner elements."""
    wide = x.dtype.compute
    if bias is not None or (x.type.rank < 3 or y.type.rank < 3) != (offs is not None):
        raise ConversionError("grouped matrix products with a bias, or without offsets, are not supported")
    if offs is None:
        product = ops.matmul(x, y, dtype=wide)
    elif x.type.rank == 2 and y.type.rank == 2:
        ids = ops.unsqueeze(_group_ids(offs, x.shape[1]), 0)
        in_group = ops.eq(ids, ops.unsqueeze(ops.iota(size=offs.shape[0]), 1))
        product = ops.matmul(ops.where(ops.unsqueeze(in_group, 1), x, 0.0), y, dtype=wide)
    elif x.type.rank == 2:
        rows = ops.take(y, _group_ids(offs, x.shape[0]), dim=0)
        product = view(ops.matmul(ops.unsqueeze(x, 1), rows, dtype=wide), (x.shape[0], y.shape[2]))
    else:
        columns = ops.take(x, _group_ids(offs, y.shape[1]), dim=0)
        product = ops.matmul(columns, ops.unsqueeze(ops.transpose(y, 0, 1), 2), dtype=wide)
        product = ops.transpose(view(product, (y.shape[1], x.shape[1])), 0, 1)
    return ops.as_dtype(product, x.dtype if out_dtype is None else from_torch(out_dtype))


@converts("transformers.grouped_mm_fallback.default")
def grouped_mm_fallback(x: Node, weight: Node, offs: Node) -> Node:
    """Convert the operator that `transformers` uses instead of `_grouped_mm`: rows after the last group are zero."""
    end = ops.as_dtype(ops.slice_(offs, dim=0, start=offs.shape[0] - 1, size=1), i64)
    inside = ops.lt(ops.iota(size=x.shape[0]), end)
    return ops.where(ops.unsqueeze(inside, 1), grouped_matmul(x, weight, offs), 0.0)


@converts("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_fallback_backward(x: Node, weight: Node, offs: Node, gradient: Node) -> tuple[Node, Node]:
    by_weight = grouped_matmul(ops.transpose(x, 0, 1), gradient, offs)
    return grouped_mm_fallback(gradient, ops.transpose(weight, 1, 2), offs), by_weight


def _group_ids(ends: Node, size: Dim) -> Node:
    """Return the group of each of `size` elements, i64[size]; elements after the last end belong to the last group."""
    ended = ops.le(ops.unsqueeze(ops.as_dtype(ends, i64), 0), ops.unsqueeze(ops.iota(size=size), 1))
    last = as_node(ends.shape[0] - 1, i64)
    return ops.minimum(ops.sum_(ops.as_dtype(ended, i64), dims=(1,)), last)


def _with_batch_dim(x: Node, spatial: int) -> Node:
    return x if x.type.rank == spatial + 2 else ops.unsqueeze(x, 0)


@converts("aten.convolution.default")
def convolution(
    x: Node, weight: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    operands = [v for v in (_with_batch_dim(x, n), weight, bias) if v is not None]
    named = {"stride": stride, "padding": padding, "dilation": dilation}
    attrs: dict[str, Any] = {k: per_dim(v, n) for k, v in named.items()} | {"groups": groups}
    if transposed:
        y = ops.conv_transposed(*operands, **attrs, output_padding=per_dim(output_padding, n))
    else:
        y = ops.convolution(*operands, **attrs)
    return y if x.type.rank == n + 2 else view(y, y.shape[1:])


@converts("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    x: Node, weight: Node, bias: Node | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    steps, pads, gaps = (per_dim(v, n) for v in (stride, padding, dilation))
    return convolution(x, weight, bias, steps, pads, gaps, False, (0,) * n, groups)


@converts("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    x: Node, weight: Node, bias: Node | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    step, pads, gaps, extra = (per_dim(v, n) for v in (stride, padding, dilation, output_padding))
    return convolution(x, weight, bias, step, pads, gaps, True, extra, groups)


@converts("aten.col2im.default")
def col2im(
    x: Node, output_size: Sequence[Dim], kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Node:  # fmt: skip
    batch, channels = x.shape[:-2], floordiv(x.shape[-2], math.prod(kernel_size))
    dims = zip(output_size, kernel_size, dilation, padding, stride, strict=True)
    image = tuple(floordiv(n + 2 * p - d * (k - 1) - 1, s) + 1 for n, k, d, p, s in dims)
    windows = view(x, (*(batch or (1,)), channels, *kernel_size, *image))
    y = ops.col2im(
        windows, stride=tuple(stride), dilation=tuple(dilation), start=tuple(padding), size=tuple(output_size)
    )
    return y if batch else view(y, y.shape[1:])


@converts("aten.scaled_dot_product_attention.default")
def attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | SymbolicScalar | None = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    if dropout_p > 0:
        raise ConversionError("dropout in attention is not supported")
    dtype, factor = q.dtype, default_scale(q, scale)
    if isinstance(factor, SymbolicScalar):  # unknown at compile time: multiply the queries by it
        q, k, v = map(widen_half, (q, k, v))
        q, factor = apply_promoted(ops.mul, q, factor), 1.0
    operands = [x for x in (q, k, v, mask) if x is not None]
    return ops.as_dtype(ops.attention(*operands, scale=factor, causal=is_causal, grouped=enable_gqa), dtype)


def default_scale(q: Node, scale: float | SymbolicScalar | None) -> float | SymbolicScalar:
    """Return `scale`, by default 1 / sqrt(size of a head)."""
    if scale is not None:
        return scale if isinstance(scale, SymbolicScalar) else float(scale)
    size = q.shape[-1]
    return 1.0 / math.sqrt(size) if isinstance(size, int) else SymbolicScalar(ops.rsqrt(as_node(size, f64)))


def attention_scores(q: Node, k: Node, mask: Node | None, causal: bool, scale: float | SymbolicScalar) -> Node:
    """Return q k^T * scale in f32 or wider, with masked scores -inf."""
    scores = ops.matmul(q, ops.transpose(k, -1, -2), dtype=q.dtype.compute)
    return ops.masked_scores(apply_promoted(ops.mul, scores, scale), mask, causal)


@converts("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    q: Node, k: Node, v: Node, dropout_p: float = 0.0, is_causal: bool = False, attn_mask: Node | None = None,
    scale: float | SymbolicScalar | None = None,
) -> tuple[Node, Node]:  # fmt: skip
    """Return the output, and each row's logsumexp for the backward pass; query heads may share keys and values."""
    k, v = (ops.expand_kv_heads(x, q.shape[-3]) for x in (k, v))
    y = attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
    scores = attention_scores(q, k, attn_mask, is_causal, default_scale(q, scale))
    return y, ops.logsumexp(scores, dims=(scores.type.rank - 1,))
