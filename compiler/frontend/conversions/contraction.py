"""Matrix products, convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from compiler.frontend.conversions.elementwise import add as add_scaled
from compiler.frontend.conversions.pooling import per_dim
from compiler.frontend.conversions.views import view
from compiler.frontend.promotion import SymbolicScalar, TensorOrNumber, apply_promoted, as_node, truncate_scalar
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.torch_types import from_torch
from compiler.ir.types import DType, f32, f64, i64


@converts("aten.linear.default")
def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    if weight.type.rank == 1:
        return view(linear(x, ops.unsqueeze(weight, 0), None if bias is None else view(bias, (1,))), x.shape[:-1])
    return ops.linear(*(v for v in (x, weight, bias) if v is not None))


@converts("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.linalg_matmul.default")
def matmul(x: Node, y: Node) -> Node:
    """Vectors count as a row on the left and as a column on the right."""
    rows = x if x.type.rank > 1 else ops.unsqueeze(x, 0)
    columns = y if y.type.rank > 1 else ops.unsqueeze(y, 1)
    product = ops.matmul(rows, columns)
    if x.type.rank > 1 and y.type.rank > 1:
        return product
    stack = product.shape[:-2]
    kept = (product.shape[-2:-1] if x.type.rank > 1 else ()) + (product.shape[-1:] if y.type.rank > 1 else ())
    return view(product, (*stack, *kept))


@converts("aten.mv.default", "aten.dot.default", "aten.vdot.default", "aten.inner.default")
def dot(x: Node, y: Node) -> Node:
    if max(x.type.rank, y.type.rank) > 1 and y.type.rank > 1:
        raise ConversionError("inner products of matrices")
    return matmul(x, y)


@converts("aten.outer.default", "aten.ger.default")
def outer(x: Node, y: Node) -> Node:
    return apply_promoted(ops.mul, ops.unsqueeze(x, 1), y)


@converts("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def addmm(bias: Node, x: Node, y: Node, beta: TensorOrNumber = 1, alpha: TensorOrNumber = 1) -> Node:
    """beta * bias + alpha * x @ y, rounded once; beta 0 ignores even NaN.  Integers take factors without their fraction."""
    dtype = x.dtype
    beta, alpha = truncate_scalar(beta, dtype), truncate_scalar(alpha, dtype)
    column = y.type.rank == 1
    product = ops.matmul(x, ops.unsqueeze(y, 1) if column else y, dtype=f32 if dtype.is_half else None)
    product = view(product, product.shape[:-1]) if column else product
    if alpha != 1:
        product = ops.mul(product, alpha)  # type: ignore[arg-type]
    if beta == 0:
        return ops.as_dtype(product, dtype)
    return ops.as_dtype(add_scaled(product, ops.as_dtype(bias, product.dtype), beta), dtype)


@converts("aten.addbmm.default")
def addbmm(bias: Node, x: Node, y: Node, beta: TensorOrNumber = 1, alpha: TensorOrNumber = 1) -> Node:
    """The products of a batch summed: one product over batch and inner dimension together."""
    (batch, rows, inner), columns = x.shape, y.shape[2]
    wide = ops.reshape(ops.transpose(x, 0, 1), shape=(rows, batch * inner))
    return addmm(bias, wide, ops.reshape(y, shape=(batch * inner, columns)), beta, alpha)


@converts("aten._trilinear.default")
def trilinear(
    x: Node, y: Node, z: Node, expand_x: Sequence[int], expand_y: Sequence[int], expand_z: Sequence[int], sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Node:  # fmt: skip
    """The sum over `sumdim` of the product of three tensors, each given new dimensions first."""
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
    """One product per group; `offs` says where each group of rows, columns or inner elements ends."""
    wide = f32 if x.dtype.is_half else x.dtype
    if bias is not None or (x.type.rank < 3 or y.type.rank < 3) != (offs is not None):
        raise ConversionError("grouped products with a bias, or without offsets")
    if offs is None:
        product = ops.matmul(x, y, dtype=wide)
    elif x.type.rank == 2 and y.type.rank == 2:
        in_group = ops.eq(
            ops.unsqueeze(_group_ids(offs, x.shape[1]), 0), ops.unsqueeze(ops.iota(size=offs.shape[0]), 1)
        )
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
    """The operator that `transformers` puts in place of `_grouped_mm`: rows after the last group are zero."""
    end = ops.as_dtype(ops.slice_(offs, dim=0, start=offs.shape[0] - 1, size=1), i64)
    inside = ops.lt(ops.iota(size=x.shape[0]), end)
    return ops.where(ops.unsqueeze(inside, 1), grouped_matmul(x, weight, offs), 0.0)


@converts("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_fallback_backward(x: Node, weight: Node, offs: Node, gradient: Node) -> tuple[Node, Node]:
    by_weight = grouped_matmul(ops.transpose(x, 0, 1), gradient, offs)
    return grouped_mm_fallback(gradient, ops.transpose(weight, 1, 2), offs), by_weight


def _group_ids(ends: Node, size: Dim) -> Node:
    """The group of each of `size` elements: the number of groups that end before it; the last takes what is left."""
    before = ops.le(ops.unsqueeze(ops.as_dtype(ends, i64), 0), ops.unsqueeze(ops.iota(size=size), 1))
    last = as_node(ends.shape[0] - 1, i64)
    return ops.minimum(ops.sum_(ops.as_dtype(before, i64), dims=(1,)), last)


def _with_batch_dim(x: Node, spatial: int) -> Node:
    return x if x.type.rank == spatial + 2 else ops.unsqueeze(x, 0)


@converts("aten.convolution.default")
def convolution(
    x: Node, weight: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    operands = [v for v in (_with_batch_dim(x, n), weight, bias) if v is not None]
    attrs: dict[str, Any] = {
        "stride": per_dim(stride, n),
        "padding": per_dim(padding, n),
        "dilation": per_dim(dilation, n),
        "groups": groups,
    }
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
    return convolution(
        x, weight, bias, per_dim(stride, n), per_dim(padding, n), per_dim(dilation, n), False, (0,) * n, groups
    )


@converts("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv_named_padding(
    x: Node, weight: Node, bias: Node | None = None, stride: int | Sequence[int] = 1, padding: str = "valid",
    dilation: int | Sequence[int] = 1, groups: int = 1,
) -> Node:  # fmt: skip
    """ "same" pads so that the size stays, an odd element going to the end."""
    n = weight.type.rank - 2
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(per_dim(dilation, n), weight.shape[2:], strict=True)]
        low = [t // 2 for t in total]
        x = ops.pad_spatial(x, low, [t - a for t, a in zip(total, low, strict=True)])
    return conv(x, weight, bias, stride, 0, dilation, groups)


@converts("aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    x: Node, weight: Node, bias: Node | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1,
) -> Node:  # fmt: skip
    n = weight.type.rank - 2
    step, pads, gaps, extra = (per_dim(v, n) for v in (stride, padding, dilation, output_padding))
    return convolution(x, weight, bias, step, pads, gaps, True, extra, groups)


@converts("aten.scaled_dot_product_attention.default")
def attention(
    q: Node, k: Node, v: Node, mask: Node | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | SymbolicScalar | None = None, enable_gqa: bool = False,
) -> Node:  # fmt: skip
    if dropout_p > 0:
        raise ConversionError("draws random numbers")
    dtype, factor = q.dtype, default_scale(q, scale)
    if isinstance(factor, SymbolicScalar):  # not known when compiling: the queries take it
        q, k, v = (ops.as_dtype(x, _sum_dtype(dtype)) for x in (q, k, v))
        q, factor = apply_promoted(ops.mul, q, factor), 1.0
    operands = [x for x in (q, k, v, mask) if x is not None]
    return ops.as_dtype(ops.attention(*operands, scale=factor, causal=is_causal, grouped=enable_gqa), dtype)


def _sum_dtype(dtype: DType) -> DType:
    """What sums of products of `dtype` are taken in."""
    return f32 if dtype.is_half else dtype


def default_scale(q: Node, scale: float | SymbolicScalar | None) -> float | SymbolicScalar:
    """`scale`, or 1 / sqrt(size of a head)."""
    if scale is not None:
        return scale if isinstance(scale, SymbolicScalar) else float(scale)
    size = q.shape[-1]
    return 1.0 / math.sqrt(size) if isinstance(size, int) else SymbolicScalar(ops.rsqrt(as_node(size, f64)))


def attention_scores(q: Node, k: Node, mask: Node | None, causal: bool, scale: float | SymbolicScalar) -> Node:
    """q k^T * scale with what is masked at -inf, in f32 or wider."""
    scores = apply_promoted(ops.mul, ops.matmul(q, ops.transpose(k, -1, -2), dtype=_sum_dtype(q.dtype)), scale)
    return ops.masked_scores(scores, mask, causal)


@converts("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    q: Node, k: Node, v: Node, dropout_p: float = 0.0, is_causal: bool = False, attn_mask: Node | None = None,
    scale: float | SymbolicScalar | None = None,
) -> tuple[Node, Node]:  # fmt: skip
    """The result, and for the backward pass the log of each row's sum of exponentials; heads may share keys and values."""
    k, v = (ops.expand_kv_heads(x, q.shape[-3]) for x in (k, v))
    y = attention(q, k, v, attn_mask, dropout_p, is_causal, scale)
    scores = attention_scores(q, k, attn_mask, is_causal, default_scale(q, scale))
    return y, ops.logsumexp(scores, dims=(scores.type.rank - 1,))
