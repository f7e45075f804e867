"""Conversions of reductions, norms, softmax, sorting and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from compiler.frontend.conversions.elementwise import as_bool
from compiler.frontend.conversions.views import canonicalize_dim, canonicalize_dims, view
from compiler.frontend.promotion import as_float, as_node, widen_half
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.torch_types import from_torch
from compiler.ir.types import boolean, i64, u8

Dims = int | Sequence[int] | None
INF = float("inf")


def _reduced(op: Op, x: Node, dims: Dims, keepdim: bool = False, **attrs: Any) -> Node:
    return op(x, dims=canonicalize_dims(dims, x.type.rank), keepdim=keepdim, **attrs)


def as_sum_dtype(x: Node, dtype: torch.dtype | None) -> Node:
    """Convert `x` to `dtype`, by default the one PyTorch sums in: i64 for integers and bools."""
    if dtype is not None:
        return ops.as_dtype(x, from_torch(dtype))
    return x if x.dtype.is_float else ops.as_dtype(x, i64)


@converts("aten.sum.dim_IntList", "aten.sum.default")
def sum_(x: Node, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Node:
    if dtype is not None and x.dtype.is_reduced_float and from_torch(dtype) == x.dtype:
        dtype = None
    return _reduced(ops.sum_, as_sum_dtype(x, dtype), dim, keepdim)


@converts("aten.mean.dim", "aten.mean.default")
def mean(x: Node, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Node:
    return _reduced(ops.mean, as_sum_dtype(x, dtype), dim, keepdim)


@converts("aten.prod.dim_int", "aten.prod.default")
def prod(x: Node, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Node:
    return _reduced(ops.prod, as_sum_dtype(x, dtype), dim, keepdim)


def _minmax(op: Op, x: Node, dims: Dims, keepdim: bool) -> Node:
    if x.dtype == boolean:
        return ops.as_dtype(_reduced(op, ops.as_dtype(x, u8), dims, keepdim), boolean)
    return _reduced(op, x, dims, keepdim)


@converts("aten.amax.default", "aten.max.default")
def amax(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    return _minmax(ops.amax, x, dim, keepdim)


@converts("aten.amin.default", "aten.min.default")
def amin(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    return _minmax(ops.amin, x, dim, keepdim)


@converts("aten.aminmax.default")
def aminmax(x: Node, dim: Dims = None, keepdim: bool = False) -> tuple[Node, Node]:
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


@converts("aten.max.other")
def max_other(x: Node, y: Node) -> Node:
    return ops.maximum(x, y)


@converts("aten.min.other")
def min_other(x: Node, y: Node) -> Node:
    return ops.minimum(x, y)


def _argminmax(op: Op, x: Node, dim: int | None, keepdim: bool) -> Node:
    """Return the first position of the extreme along `dim`, or in the flattened tensor if `dim` is None."""
    x = ops.as_dtype(x, u8) if x.dtype == boolean else x
    flat = view(x, (x.type.numel,)) if dim is None or not x.type.rank else x
    result = op(flat, dim=canonicalize_dim(dim or 0, flat.type.rank), keepdim=False)
    if keepdim and x.type.rank:
        d = None if dim is None else canonicalize_dim(dim, x.type.rank)
        return view(result, tuple(1 if d is None or k == d else size for k, size in enumerate(x.shape)))
    return result


@converts("aten.argmax.default")
def argmax(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    return _argminmax(ops.argmax, x, dim, keepdim)


@converts("aten.argmin.default")
def argmin(x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    return _argminmax(ops.argmin, x, dim, keepdim)


@converts("aten.max.dim")
def max_dim(x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return amax(x, (dim,), keepdim), argmax(x, dim, keepdim)


@converts("aten.min.dim")
def min_dim(x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return amin(x, (dim,), keepdim), argmin(x, dim, keepdim)


@converts("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    return _bool_result_like(x, _reduced(ops.any_, as_bool(x), dim, keepdim))


@converts("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    return _bool_result_like(x, _reduced(ops.all_, as_bool(x), dim, keepdim))


def _bool_result_like(x: Node, result: Node) -> Node:
    """Convert a bool result to u8 if `x` is u8, as PyTorch does."""
    return ops.as_dtype(result, u8) if x.dtype == u8 else result


@converts("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(x: Node, dim: Dims = None) -> Node:
    return sum_(as_bool(x), dim)


@converts("aten.var.correction")
def var(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Node:
    return _reduced(ops.var, x, dim, keepdim, correction=1 if correction is None else correction)


@converts("aten.var.dim", "aten.var.default")
def var_dim(x: Node, *arguments: Any, unbiased: bool = True, keepdim: bool = False) -> Node:
    dims, unbiased, keepdim = _legacy_var_args(arguments, unbiased, keepdim)
    return var(x, dims, int(unbiased), keepdim)


@converts("aten.std.correction")
def std(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Node:
    return ops.sqrt(var(x, dim, correction, keepdim))


@converts("aten.std.dim", "aten.std.default")
def std_dim(x: Node, *arguments: Any, unbiased: bool = True, keepdim: bool = False) -> Node:
    return ops.sqrt(var_dim(x, *arguments, unbiased=unbiased, keepdim=keepdim))


def _legacy_var_args(arguments: Sequence[Any], unbiased: bool, keepdim: bool) -> tuple[Dims, bool, bool]:
    """Return (dims, unbiased, keepdim) for the signatures with and without dimensions."""
    dims = arguments[0] if arguments and not isinstance(arguments[0], bool) else None
    flags = arguments[1:] if dims is not None or (arguments and arguments[0] is None) else arguments
    return dims, flags[0] if flags else unbiased, flags[1] if len(flags) > 1 else keepdim


@converts("aten.var_mean.correction")
def var_mean(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return var(x, dim, correction, keepdim), mean(x, dim, keepdim)


@converts("aten.std_mean.correction")
def std_mean(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return std(x, dim, correction, keepdim), mean(x, dim, keepdim)


@converts("aten.logsumexp.default")
def logsumexp(x: Node, dim: Dims, keepdim: bool = False) -> Node:
    return _reduced(ops.logsumexp, as_float(x), dim, keepdim)


@converts("aten.linalg_vector_norm.default")
def vector_norm(
    x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Node:
    x = as_float(x) if dtype is None else ops.as_dtype(x, from_torch(dtype))
    if ord == 2:
        return _reduced(ops.norm, x, dim, keepdim)
    if ord == 1:
        return _reduced(ops.sum_, ops.abs_(x), dim, keepdim)
    if abs(ord) == INF:
        return _reduced(ops.amax if ord > 0 else ops.amin, ops.abs_(x), dim, keepdim)
    if ord == 0:
        return _reduced(ops.sum_, ops.as_dtype(ops.ne(x, 0.0), x.dtype), dim, keepdim)
    total = _reduced(ops.sum_, ops.pow_(ops.abs_(widen_half(x)), float(ord)), dim, keepdim)
    return ops.as_dtype(ops.pow_(total, 1.0 / ord), x.dtype)


@converts("aten.norm.ScalarOpt_dim", "aten.norm.Scalar", "aten.norm.ScalarOpt_dim_dtype")
def norm(
    x: Node, p: float | None = 2, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Node:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype)


def _softmax_along(op: Op, x: Node, dim: int, dtype: torch.dtype | None) -> Node:
    x = as_float(x) if dtype is None else ops.as_dtype(x, from_torch(dtype))
    return op(x, dim=canonicalize_dim(dim, x.type.rank))


@converts("aten.softmax.int")
def softmax(x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    return _softmax_along(ops.softmax, x, dim, dtype)


@converts("aten.log_softmax.int")
def log_softmax(x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    return _softmax_along(ops.log_softmax, x, dim, dtype)


@converts("aten._softmax.default")
def _softmax(x: Node, dim: int, half_to_float: bool) -> Node:
    return _softmax_along(ops.softmax, x, dim, torch.float32 if half_to_float else None)


@converts("aten._log_softmax.default")
def _log_softmax(x: Node, dim: int, half_to_float: bool) -> Node:
    return _softmax_along(ops.log_softmax, x, dim, torch.float32 if half_to_float else None)


@converts("aten._safe_softmax.default")
def safe_softmax(x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    """Return the softmax, with zeros in rows where every element is -inf."""
    empty = _reduced(ops.all_, ops.eq(x, -INF), dim, True)
    return ops.where(empty, 0.0, softmax(x, dim, dtype))


@converts("aten.topk.default")
def topk(x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Node, ...]:
    return ops.result_nodes(ops.topk(x, k=k, dim=canonicalize_dim(dim, x.type.rank), largest=largest, sorted=sorted))


@converts("aten.sort.default")
def sort(x: Node, dim: int = -1, descending: bool = False) -> tuple[Node, ...]:
    return ops.result_nodes(ops.sort(x, dim=canonicalize_dim(dim, x.type.rank), descending=descending))


@converts("aten.sort.stable")
def sort_stable(x: Node, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Node, ...]:
    dim = canonicalize_dim(dim, x.type.rank)
    return ops.result_nodes(ops.sort(x, dim=dim, descending=descending, stable=bool(stable)))


@converts("aten.argsort.default")
def argsort(x: Node, dim: int = -1, descending: bool = False) -> Node:
    return sort(x, dim, descending)[1]


@converts("aten.argsort.stable")
def argsort_stable(x: Node, stable: bool, dim: int = -1, descending: bool = False) -> Node:
    return sort_stable(x, stable, dim, descending)[1]


def _apply_reduction(losses: Node, reduction: int) -> Node:
    """Apply PyTorch's reduction code: 0 for none, 1 for the mean, 2 for the sum."""
    return losses if reduction == 0 else mean(losses) if reduction == 1 else sum_(losses)


@converts("aten.mse_loss.default")
def mse_loss(x: Node, y: Node, reduction: int = 1) -> Node:
    error = ops.sub(x, y)
    return _apply_reduction(ops.mul(error, error), reduction)


@converts("aten.l1_loss.default")
def l1_loss(x: Node, y: Node, reduction: int = 1) -> Node:
    return _apply_reduction(ops.abs_(ops.sub(x, y)), reduction)


@converts("aten.nll_loss_forward.default")
def nll_loss(x: Node, target: Node, weight: Node | None, reduction: int, ignore_index: int) -> tuple[Node, Node]:
    """Return the loss and the total weight that divides a mean; targets equal to `ignore_index` do not count."""
    if x.type.rank > 2:
        raise ConversionError("nll_loss on more than two dimensions is not supported")
    d = x.type.rank - 1
    valid = ops.ne(target, ignore_index)
    label = ops.where(valid, target, 0)
    picked = ops.gather(x, ops.unsqueeze(label, d), dim=d)
    scale = as_node(1, x.dtype) if weight is None else ops.take(weight, label)
    scale = ops.where(valid, scale, 0.0)
    losses = ops.neg(ops.mul(view(picked, target.shape), scale))
    total = sum_(scale if scale.shape == target.shape else ops.expand(scale, shape=target.shape))
    if reduction == 0:
        return losses, as_node(0, x.dtype)
    loss = sum_(losses)
    return (ops.div(loss, total) if reduction == 1 else loss), total
