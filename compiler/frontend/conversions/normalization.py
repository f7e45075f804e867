"""Conversions of normalizations; `native_*` ones also return the statistics that the backward pass needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.frontend.promotion import widen_half
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import Dim, floordiv, product
from compiler.ir.torch_types import to_torch


def _affine_params(like: Node, weight: Node | None, bias: Node | None, shape: Sequence[Dim]) -> list[Node]:
    """Return weight and bias in the dtype of `like`; a bias without weight gets a weight of ones."""
    if weight is None and bias is not None:
        weight = ops.full(shape, 1.0, like.dtype)
    return [ops.as_dtype(v, like.dtype) for v in (weight, bias) if v is not None]


@converts("aten.layer_norm.default")
def layer_norm(
    x: Node, shape: Sequence[Dim], weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5, cudnn: bool = True
) -> Node:  # fmt: skip
    return ops.layer_norm(x, *_affine_params(x, weight, bias, shape), dims=len(shape), eps=eps)


def _statistics(x: Node, dims: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """Return mean and reciprocal standard deviation over `dims` (kept with size 1); f32 for reduced floats."""
    wide = widen_half(x)
    variance = ops.var(wide, dims=dims, keepdim=True, correction=0)
    return ops.mean(wide, dims=dims, keepdim=True), ops.rsqrt(ops.add(variance, eps))


@converts("aten.native_layer_norm.default")
def native_layer_norm(
    x: Node, shape: Sequence[Dim], weight: Node | None, bias: Node | None, eps: float
) -> tuple[Node, Node, Node]:
    dims = tuple(range(x.type.rank - len(shape), x.type.rank))
    return layer_norm(x, shape, weight, bias, eps), *_statistics(x, dims, eps)


@converts("aten.rms_norm.default")
def rms_norm(x: Node, shape: Sequence[Dim], weight: Node | None = None, eps: float | None = None) -> Node:
    eps = torch.finfo(to_torch(x.dtype.compute)).eps if eps is None else eps
    return ops.rms_norm(x, *_affine_params(x, weight, None, shape), dims=len(shape), eps=eps)


@converts("aten.batch_norm.default")
def batch_norm(
    x: Node, weight: Node | None, bias: Node | None, mean: Node | None, variance: Node | None, training: bool,
    momentum: float, eps: float, cudnn: bool,
) -> Node:  # fmt: skip
    if training or mean is None or variance is None:
        return _batch_statistics_norm(x, weight, bias, eps)[0]
    return _norm_with_statistics(x, mean, variance, weight, bias, eps)


def _norm_with_statistics(
    x: Node, mean: Node, variance: Node, weight: Node | None, bias: Node | None, eps: float
) -> Node:
    """Normalize by given statistics, in their dtype."""
    wide = ops.as_dtype(x, mean.dtype) if mean.dtype != x.dtype else x
    y = ops.batch_norm(wide, mean, variance, *_affine_params(wide, weight, bias, (x.shape[1],)), eps=eps)
    return ops.as_dtype(y, x.dtype)


def _batch_statistics_norm(x: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    """Normalize by the statistics of the batch; return the result, and mean and variance per channel."""
    wide, dims = widen_half(x), tuple(d for d in range(x.type.rank) if d != 1)
    mean, variance = ops.mean(wide, dims=dims), ops.var(wide, dims=dims, correction=0)
    y = ops.batch_norm(wide, mean, variance, *_affine_params(wide, weight, bias, (x.shape[1],)), eps=eps)
    return ops.as_dtype(y, x.dtype), mean, variance


@converts("aten._native_batch_norm_legit_no_training.default")
def native_batch_norm_inference(
    x: Node, weight: Node | None, bias: Node | None, mean: Node, variance: Node, momentum: float, eps: float
) -> tuple[Node, Node, Node]:
    empty = ops.full((0,), 0.0, mean.dtype)
    return _norm_with_statistics(x, mean, variance, weight, bias, eps), empty, empty


@converts("aten._native_batch_norm_legit.no_stats")
def native_batch_norm_stateless(
    x: Node, weight: Node | None, bias: Node | None, training: bool, momentum: float, eps: float
) -> tuple[Node, Node, Node]:
    y, mean, variance = _batch_statistics_norm(x, weight, bias, eps)
    return y, *_saved_statistics(x, mean, variance, eps)


def _saved_statistics(x: Node, mean: Node, variance: Node, eps: float) -> tuple[Node, Node]:
    """Return mean and reciprocal standard deviation in the dtype of `x`, as PyTorch saves them for backward."""
    return ops.as_dtype(mean, x.dtype), ops.as_dtype(ops.rsqrt(ops.add(variance, eps)), x.dtype)


@converts("aten._native_batch_norm_legit_functional.default")
def native_batch_norm_training(
    x: Node, weight: Node | None, bias: Node | None, mean: Node, variance: Node, training: bool, momentum: float, eps: float
) -> tuple[Node, ...]:  # fmt: skip
    """Return the result, saved mean, saved reciprocal deviation, and the updated running mean and variance.

    The running statistics are f32 for reduced floats.
    """
    wide = x.dtype.compute
    if not training:
        y, empty = _norm_with_statistics(x, mean, variance, weight, bias, eps), ops.full((0,), 0.0, x.dtype)
        return y, empty, empty, ops.as_dtype(mean, wide), ops.as_dtype(variance, wide)
    y, batch_mean, batch_variance = _batch_statistics_norm(x, weight, bias, eps)
    count = ops.as_dtype(ops.dim_value(value=product((x.shape[0], *x.shape[2:]))), batch_variance.dtype)
    unbiased = ops.mul(batch_variance, ops.div(count, ops.sub(count, 1.0)))
    running = [
        ops.add(ops.mul(ops.as_dtype(old, wide), 1 - momentum), ops.mul(new, momentum))
        for old, new in ((mean, batch_mean), (variance, unbiased))
    ]
    return y, *_saved_statistics(x, batch_mean, batch_variance, eps), *running


@converts("aten.group_norm.default")
def group_norm(
    x: Node, groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5, cudnn: bool = True
) -> Node:
    return ops.group_norm(x, *_affine_params(x, weight, bias, (x.shape[1],)), groups=groups, eps=eps)


@converts("aten.native_group_norm.default")
def native_group_norm(
    x: Node, weight: Node | None, bias: Node | None, batch: Dim, channels: Dim, area: Dim, groups: int, eps: float
) -> tuple[Node, Node, Node]:
    grouped = ops.reshape(x, shape=(batch, groups, floordiv(channels, groups) * area))
    statistics = _statistics(grouped, (2,), eps)
    mean, rstd = (ops.reshape(ops.as_dtype(s, x.dtype), shape=(batch, groups)) for s in statistics)
    return group_norm(x, groups, weight, bias, eps), mean, rstd
