"""Backward operators of autograd that PyTorch does not decompose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.frontend.conversions.contraction import attention_scores, convolution, default_scale
from compiler.frontend.conversions.pooling import per_dim
from compiler.frontend.promotion import SymbolicScalar, apply_promoted
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, floordiv


@converts("aten.sigmoid_backward.default")
def sigmoid_backward(gradient: Node, y: Node) -> Node:
    return ops.mul(gradient, ops.mul(y, ops.sub(1.0, y)))


@converts("aten.tanh_backward.default")
def tanh_backward(gradient: Node, y: Node) -> Node:
    return ops.mul(gradient, ops.sub(1.0, ops.mul(y, y)))


@converts("aten.hardshrink_backward.default", "aten.softshrink_backward.default")
def shrink_backward(gradient: Node, x: Node, lambd: float) -> Node:
    is_zero = ops.and_(ops.ge(x, -lambd), ops.le(x, lambd))
    return ops.where(is_zero, 0.0, gradient)


@converts("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    gradient: Node, q: Node, k: Node, v: Node, y: Node, logsumexp: Node, dropout_p: float, is_causal: bool,
    attn_mask: Node | None = None, scale: float | SymbolicScalar | None = None,
) -> tuple[Node, Node, Node]:  # fmt: skip
    """Return the gradients of `q`, `k` and `v`.

    The probabilities p are recomputed from `logsumexp` (Dao et al., FlashAttention, 2022, algorithm 4).
    """
    key_heads, value_heads = k.shape[-3], v.shape[-3]
    k, v = (ops.expand_kv_heads(x, q.shape[-3]) for x in (k, v))
    factor = default_scale(q, scale)
    scores = attention_scores(q, k, attn_mask, is_causal, factor)
    wide = scores.dtype
    rows = ops.unsqueeze(ops.as_dtype(logsumexp, wide), -1)
    p = ops.exp(ops.sub(scores, ops.where(ops.eq(rows, float("-inf")), 0.0, rows)))
    g, last = ops.as_dtype(gradient, wide), (scores.type.rank - 1,)
    mean = ops.sum_(ops.mul(g, ops.as_dtype(y, wide)), dims=last, keepdim=True)
    centered = ops.sub(ops.matmul(gradient, ops.transpose(v, -1, -2), dtype=wide), mean)
    ds = ops.as_dtype(apply_promoted(ops.mul, ops.mul(p, centered), factor), q.dtype)
    dk = ops.matmul(ops.transpose(ds, -1, -2), q)
    dv = ops.matmul(ops.transpose(ops.as_dtype(p, v.dtype), -1, -2), gradient)
    return ops.matmul(ds, k), _sum_shared_heads(dk, key_heads), _sum_shared_heads(dv, value_heads)


def _sum_shared_heads(gradient: Node, heads: Dim) -> Node:
    """Sum the gradient of a key or value over the query heads that share each of its `heads`."""
    *front, query_heads, rows, columns = gradient.shape
    if query_heads == heads:
        return gradient
    grouped = ops.reshape(gradient, shape=(*front, heads, floordiv(query_heads, heads), rows, columns))
    return ops.sum_(grouped, dims=(grouped.type.rank - 3,))


@converts("aten.convolution_backward.default")
def convolution_backward(
    gradient: Node, x: Node, weight: Node, bias_sizes: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Node | None, Node | None, Node | None]:  # fmt: skip
    window: tuple[Any, ...] = (*(per_dim(v, x.type.rank - 2) for v in (stride, padding, dilation)), groups)
    input_gradient = _transposed_input_gradient if transposed else convolution_input_gradient
    operands = (x, gradient) if transposed else (gradient, x)
    return (
        input_gradient(gradient, x, weight, *window) if output_mask[0] else None,
        _convolution_weight_gradient(*operands, weight, *window) if output_mask[1] else None,
        ops.sum_(gradient, dims=(0, *range(2, x.type.rank))) if output_mask[2] else None,
    )


def _transposed_input_gradient(
    gradient: Node, x: Node, weight: Node, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Node:  # fmt: skip
    """Convolve the gradient of a transposed convolution; elements that stem only from output padding are dropped."""
    zeros = (0,) * len(stride)
    result = convolution(gradient, weight, None, stride, padding, dilation, False, zeros, groups)
    for d in range(2, x.type.rank):
        result = ops.slice_(result, dim=d, size=x.shape[d]) if result.shape[d] != x.shape[d] else result
    return result


def convolution_input_gradient(
    gradient: Node, x: Node, weight: Node, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Node:  # fmt: skip
    """Return the transposed convolution of the gradient, padded where no window reads the last elements of `x`.

    Where the number of those is symbolic, it is padded by the maximum, `stride - 1`, and cropped.
    """
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    unread = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in sizes]
    output_padding = [r if isinstance(r, int) else s - 1 for r, s in zip(unread, stride, strict=True)]
    result = convolution(gradient, weight, None, stride, padding, dilation, True, output_padding, groups)
    for d, (r, n) in enumerate(zip(unread, x.shape[2:], strict=True), 2):
        result = result if isinstance(r, int) else ops.slice_(result, dim=d, size=n)
    return result


def _convolution_weight_gradient(
    gradient: Node, x: Node, weight: Node, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Node:  # fmt: skip
    """Convolve the input with the gradient, with batch and channels exchanged, and stride and dilation too."""
    batch, _, *area = x.shape
    spatial = tuple(range(3, x.type.rank + 1))
    grouped = ops.reshape(x, shape=(batch, groups, weight.shape[1], *area))
    image = ops.reshape(ops.permute(grouped, dims=(2, 1, 0, *spatial)), shape=(weight.shape[1], groups * batch, *area))
    window = ops.transpose(gradient, 0, 1)
    result = ops.conv(ops.pad_spatial(image, padding, padding), window, stride=dilation, dilation=stride, groups=groups)
    for d in range(2, x.type.rank):
        result = ops.slice_(result, dim=d, size=weight.shape[d])
    return ops.transpose(result, 0, 1)
