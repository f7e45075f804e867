"""Gradients of average pooling and padding: each element of the result is spread over what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from compiler.frontend.conversions.backward import convolution_input_gradient
from compiler.frontend.conversions.index_tensors import clamp_positions, fold_if_static, positions
from compiler.frontend.conversions.pooling import per_dim, window_bounds
from compiler.frontend.conversions.views import repeat_interleave, view
from compiler.frontend.promotion import as_node
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, product
from compiler.ir.types import f32, f64, i64


def _apply_weights(gradient: Node, weights: Sequence[Node]) -> Node:
    """Each of the last dimensions multiplied by its matrix [of the result, of the operand], in f32 or wider."""
    first, dtype = gradient.type.rank - len(weights), gradient.dtype
    wide = f32 if dtype.is_half else dtype
    result = ops.as_dtype(gradient, wide)
    for k, matrix in enumerate(weights):
        turned = ops.transpose(result, first + k, -1)
        result = ops.transpose(ops.matmul(turned, ops.as_dtype(matrix, wide)), first + k, -1)
    return ops.as_dtype(result, dtype)


def _window_weights(low: Node, high: Node, n: Dim, m: Dim, members: Node | None = None) -> Node:
    """What element i of `n` has of window j of `m`, as numbers [j, i]: one of `members` if it lies in low..high - 1, else 0."""
    at, low, high = positions(n), ops.unsqueeze(low, 1), ops.unsqueeze(high, 1)
    inside = ops.as_dtype(ops.and_(ops.le(low, at), ops.lt(at, high)), f64)
    return fold_if_static(
        inside if members is None else ops.div(inside, ops.as_dtype(ops.unsqueeze(members, 1), f64)), n, m
    )


def _make_avg_pool_backward(count: int) -> Any:
    def avg_pool_backward(
        gradient: Node, x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
        count_include_pad: bool, divisor: int | None,
    ) -> Node:  # fmt: skip
        """With windows of one size, a transposed convolution with ones, channel by channel."""
        size, pads = per_dim(kernel, count), per_dim(padding, count)
        steps = per_dim(stride, count) if len(stride) else size
        if ceil_mode or (divisor is None and not count_include_pad and any(pads)):
            return _uneven_avg_pool(gradient, x, size, steps, pads, count_include_pad, divisor)
        share = ops.div(gradient, float(divisor or prod(size)))
        lead, area = product(x.shape[:-count]), x.shape[-count:]
        ones = ops.full((1, 1, *size), 1.0, x.dtype)
        single, image = view(share, (lead, 1, *gradient.shape[-count:])), view(x, (lead, 1, *area))
        return view(convolution_input_gradient(single, image, ones, steps, pads, (1,) * count, 1), x.shape)

    return avg_pool_backward


for _count in (2, 3):
    converts(f"aten.avg_pool{_count}d_backward.default")(_make_avg_pool_backward(_count))


def _uneven_avg_pool(
    gradient: Node, x: Node, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], with_pad: bool,
    divisor: int | None,
) -> Node:  # fmt: skip
    """Windows that hang over the end count what is inside, and the padding too where it counts."""
    weights, count = [], len(kernel)
    for n, m, k, s, p in zip(x.shape[-count:], gradient.shape[-count:], kernel, stride, padding, strict=True):
        low = ops.sub(ops.mul(positions(m), s), p)
        high = ops.minimum(ops.add(low, k), as_node(n + p, i64))
        begin, end = (low, high) if with_pad else (ops.maximum(low, 0), ops.minimum(high, as_node(n, i64)))
        weights.append(_window_weights(low, high, n, m, None if divisor else ops.sub(end, begin)))
    spread = _apply_weights(gradient, weights)
    return ops.div(spread, float(divisor)) if divisor else spread


@converts("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(gradient: Node, x: Node) -> Node:
    return _adaptive_avg_pool(gradient, x, 2)


@converts("aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(gradient: Node, x: Node) -> Node:
    return _adaptive_avg_pool(gradient, x, 3)


def _adaptive_avg_pool(gradient: Node, x: Node, count: int) -> Node:
    first = x.type.rank - count
    sizes = [(x.shape[d], gradient.shape[d]) for d in range(first, x.type.rank)]
    if any(n % m != 0 for n, m in sizes):
        return _apply_weights(gradient, [_adaptive_weights(n, m) for n, m in sizes])
    spread = gradient
    for k, (n, m) in enumerate(sizes):
        spread = repeat_interleave(spread, n // m, first + k)
    return ops.div(spread, as_node(product(n // m for n, m in sizes), x.dtype))


def _adaptive_weights(n: Dim, m: Dim) -> Node:
    low, high = window_bounds(n, m)
    return _window_weights(low, high, n, m, ops.sub(high, low))


@converts(
    "aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default", "aten.replication_pad3d_backward.default"
)  # fmt: skip
def replication_pad_backward(gradient: Node, x: Node, padding: Sequence[int]) -> Node:
    """Every copy of an edge adds to it."""
    count, weights = len(padding) // 2, []
    for k, n in enumerate(x.shape[-count:]):
        before, after = padding[2 * (count - 1 - k) : 2 * (count - k)]
        source = clamp_positions(positions(n + before + after, -before), n)
        weights.append(_window_weights(source, ops.add(source, 1), n, n))
    return _apply_weights(gradient, weights)
