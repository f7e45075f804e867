"""Gradients of average pooling and padding: a product with the matrix of window weights for each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from compiler.frontend.conversions.backward import convolution_input_gradient
from compiler.frontend.conversions.index_tensors import clamp_positions, fold_if_static, positions
from compiler.frontend.conversions.pooling import per_dim, window_bounds
from compiler.frontend.conversions.views import padding_pairs, repeat_interleave, view
from compiler.frontend.promotion import as_node, widen_half
from compiler.frontend.registry import converts, converts_spatial
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.types import f64, i64


def _apply_weights(gradient: Node, weights: Sequence[Node]) -> Node:
    """Multiply each spatial dimension of the gradient by its matrix [size of the result, size of the operand].

    Half types are computed in f32.
    """
    result = widen_half(gradient)
    for d, matrix in enumerate(weights, gradient.type.rank - len(weights)):
        transposed = ops.transpose(result, d, -1)
        result = ops.transpose(ops.matmul(transposed, ops.as_dtype(matrix, result.dtype)), d, -1)
    return ops.as_dtype(result, gradient.dtype)


def _window_weights(low: Node, high: Node, n: Dim, m: Dim, members: Node | None = None) -> Node:
    """Return the weight of element i of `n` in window j of `m`, as f64[m, n].

    It is 1 / members[j] (1 without `members`) if i lies in low[j]..high[j] - 1, else 0.
    """
    i, low, high = positions(n), ops.unsqueeze(low, 1), ops.unsqueeze(high, 1)
    inside = ops.as_dtype(ops.and_(ops.le(low, i), ops.lt(i, high)), f64)
    weights = inside if members is None else ops.div(inside, ops.as_dtype(ops.unsqueeze(members, 1), f64))
    return fold_if_static(weights, n, m)


@converts_spatial("aten.avg_pool#d_backward.default", 2, 3)
def avg_pool_backward(
    count: int, gradient: Node, x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
    count_include_pad: bool, divisor: int | None,
) -> Node:  # fmt: skip
    """Return a depthwise transposed convolution with ones, if all windows have the same size."""
    size, pads = per_dim(kernel, count), per_dim(padding, count)
    steps = per_dim(stride, count) if len(stride) else size
    if ceil_mode or (divisor is None and not count_include_pad and any(pads)):
        return _uneven_avg_pool(gradient, x, size, steps, pads, count_include_pad, divisor)
    scaled = ops.div(gradient, float(divisor or prod(size)))
    batch, area = product(x.shape[:-count]), x.shape[-count:]
    ones = ops.full((1, 1, *size), 1.0, x.dtype)
    single, image = view(scaled, (batch, 1, *gradient.shape[-count:])), view(x, (batch, 1, *area))
    return view(convolution_input_gradient(single, image, ones, steps, pads, (1,) * count, 1), x.shape)


def _uneven_avg_pool(
    gradient: Node, x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], with_pad: bool,
    divisor: int | None,
) -> Node:  # fmt: skip
    """Return the gradient for windows of different sizes; `with_pad` counts their padding too."""
    weights, count = [], len(kernel)
    for n, m, k, s, p in zip(x.shape[-count:], gradient.shape[-count:], kernel, stride, padding, strict=True):
        low = ops.sub(ops.mul(positions(m), s), p)
        high = ops.minimum(ops.add(low, k), as_node(n + p, i64))
        begin, end = (low, high) if with_pad else (ops.maximum(low, 0), ops.minimum(high, as_node(n, i64)))
        weights.append(_window_weights(low, high, n, m, None if divisor else ops.sub(end, begin)))
    result = _apply_weights(gradient, weights)
    return ops.div(result, float(divisor)) if divisor else result


@converts_spatial("aten._adaptive_avg_pool#d_backward.default", 2, 3)
def adaptive_avg_pool_backward(count: int, gradient: Node, x: Node) -> Node:
    first = x.type.rank - count
    sizes = [(x.shape[d], gradient.shape[d]) for d in range(first, x.type.rank)]
    if any(n % m != 0 for n, m in sizes):
        return _apply_weights(gradient, [_adaptive_weights(n, m) for n, m in sizes])
    repeated = gradient
    for k, (n, m) in enumerate(sizes):
        repeated = repeat_interleave(repeated, n // m, first + k)
    return ops.div(repeated, as_node(product(n // m for n, m in sizes), x.dtype))


def _adaptive_weights(n: Dim, m: Dim) -> Node:
    low, high = window_bounds(n, m)
    return _window_weights(low, high, n, m, ops.sub(high, low))


@converts(
    "aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default", "aten.replication_pad3d_backward.default"
)  # fmt: skip
def replication_pad_backward(gradient: Node, x: Node, padding: Sequence[int]) -> Node:
    """Sum the gradients of all copies of each element."""
    count, weights = len(padding) // 2, []
    for n, (low, high) in zip(x.shape[-count:], padding_pairs(padding, count), strict=True):
        source = clamp_positions(positions(n + low + high, -low), n)
        weights.append(_window_weights(source, ops.add(source, 1), n, n))
    return _apply_weights(gradient, weights)
