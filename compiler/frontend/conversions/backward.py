"""Gradients that autograd has operators of its own for and PyTorch does not decompose."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.conversions.contraction import attention_scores, convolution, default_scale
from compiler.frontend.conversions.pooling import per_dim
from compiler.frontend.promotion import SymbolicScalar, apply_promoted, as_node
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


@converts("aten.threshold_backward.default")
def threshold_backward(gradient: Node, x: Node, threshold: float) -> Node:
    return ops.where(ops.le(x, threshold), as_node(0, gradient.dtype), gradient)


@converts("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    gradient: Node, q: Node, k: Node, v: Node, y: Node, logsumexp: Node, dropout_p: float, is_causal: bool,
    attn_mask: Node | None = None, scale: float | SymbolicScalar | None = None,
) -> tuple[Node, Node, Node]:  # fmt: skip
    """With p the probabilities, found again from the log of their sums (Dao and others, 2022, algorithm 4)."""
    of_keys, of_values = k.shape[-3], v.shape[-3]
    k, v = (ops.expand_kv_heads(x, q.shape[-3]) for x in (k, v))
    factor = default_scale(q, scale)
    scores = attention_scores(q, k, attn_mask, is_causal, factor)
    wide = scores.dtype
    rows = ops.unsqueeze(ops.as_dtype(logsumexp, wide), -1)
    p = ops.exp(ops.sub(scores, ops.where(ops.eq(rows, float("-inf")), 0.0, rows)))
    g, last = ops.as_dtype(gradient, wide), (scores.type.rank - 1,)
    share = ops.sum_(ops.mul(g, ops.as_dtype(y, wide)), dims=last, keepdim=True)
    inner = ops.sub(ops.matmul(gradient, ops.transpose(v, -1, -2), dtype=wide), share)
    ds = ops.as_dtype(apply_promoted(ops.mul, ops.mul(p, inner), factor), q.dtype)
    dk = ops.matmul(ops.transpose(ds, -1, -2), q)
    dv = ops.matmul(ops.transpose(ops.as_dtype(p, v.dtype), -1, -2), gradient)
    return ops.matmul(ds, k), _sum_shared_heads(dk, of_keys), _sum_shared_heads(dv, of_values)


def _sum_shared_heads(gradient: Node, heads: Dim) -> Node:
    """The gradient of each of `heads` that several heads share."""
    *front, own, rows, columns = gradient.shape
    if own == heads:
        return gradient
    grouped = ops.reshape(gradient, shape=(*front, heads, floordiv(own, heads), rows, columns))
    return ops.sum_(grouped, dims=(grouped.type.rank - 3,))


@converts("aten.convolution_backward.default")
def convolution_backward(
    gradient: Node, x: Node, weight: Node, bias_sizes: Sequence[int] | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Node | None, Node | None, Node | None]:  # fmt: skip
    axes = (0, *range(2, x.type.rank))
    stride, padding, dilation = (per_dim(v, x.type.rank - 2) for v in (stride, padding, dilation))
    if transposed:
        return (
            _transposed_input_gradient(gradient, x, weight, stride, padding, dilation, groups)
            if output_mask[0]
            else None,
            _convolution_weight_gradient(x, gradient, weight, stride, padding, dilation, groups)
            if output_mask[1]
            else None,
            ops.sum_(gradient, dims=axes) if output_mask[2] else None,
        )
    return (
        convolution_input_gradient(gradient, x, weight, stride, padding, dilation, groups) if output_mask[0] else None,
        _convolution_weight_gradient(gradient, x, weight, stride, padding, dilation, groups)
        if output_mask[1]
        else None,
        ops.sum_(gradient, dims=axes) if output_mask[2] else None,
    )


def _transposed_input_gradient(
    gradient: Node,
    x: Node,
    weight: Node,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Node:
    """The convolution that the transposed one undoes; places that only output padding made are left out."""
    zeros = (0,) * len(stride)
    result = convolution(gradient, weight, None, stride, padding, dilation, False, zeros, groups)
    for d in range(2, x.type.rank):
        result = ops.slice_(result, dim=d, size=x.shape[d]) if result.shape[d] != x.shape[d] else result
    return result


def convolution_input_gradient(
    gradient: Node,
    x: Node,
    weight: Node,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Node:
    """The transposed convolution of the gradient; what the last window left over is padded: as far as it may, and cut, where its size is open."""
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    rest = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in sizes]
    most = [r if isinstance(r, int) else s - 1 for r, s in zip(rest, stride, strict=True)]
    result = convolution(gradient, weight, None, stride, padding, dilation, True, most, groups)
    for d, (r, n) in enumerate(zip(rest, x.shape[2:], strict=True), 2):
        result = result if isinstance(r, int) else ops.slice_(result, dim=d, size=n)
    return result


def _convolution_weight_gradient(
    gradient: Node,
    x: Node,
    weight: Node,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Node:
    """Input and gradient convolved with batch and channels exchanged, stride and dilation too."""
    batch, _, *area = x.shape
    spatial = tuple(range(3, x.type.rank + 1))
    grouped = ops.reshape(x, shape=(batch, groups, weight.shape[1], *area))
    image = ops.reshape(ops.permute(grouped, dims=(2, 1, 0, *spatial)), shape=(weight.shape[1], groups * batch, *area))
    window = ops.transpose(gradient, 0, 1)
    result = ops.conv(ops.pad_spatial(image, padding, padding), window, stride=dilation, dilation=stride, groups=groups)
    for d in range(2, x.type.rank):
        result = ops.slice_(result, dim=d, size=weight.shape[d])
    return ops.transpose(result, 0, 1)
