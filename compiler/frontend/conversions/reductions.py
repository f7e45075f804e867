"""Conversions of reductions, norms, softmax and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from compiler.frontend.conversions.elementwise import as_bool
from compiler.frontend.conversions.views import canonicalize_dim, canonicalize_dims, view
from compiler.frontend.promotion import as_float, widen_half
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.torch_types import from_torch
from compiler.ir.types import boolean, f32, i64, u8

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


def _reduced_sum(op: Op, x: Node, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Node:
    return _reduced(op, as_sum_dtype(x, dtype), dim, keepdim)


mean = converts("aten.mean.dim", "aten.mean.default")(partial(_reduced_sum, ops.mean))
converts("aten.prod.dim_int", "aten.prod.default")(partial(_reduced_sum, ops.prod))


def _minmax(op: Op, x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    if x.dtype == boolean:
        return ops.as_dtype(_reduced(op, ops.as_dtype(x, u8), dim, keepdim), boolean)
    return _reduced(op, x, dim, keepdim)


converts("aten.amax.default", "aten.max.default")(partial(_minmax, ops.amax))
converts("aten.amin.default", "aten.min.default")(partial(_minmax, ops.amin))


@converts("aten.aminmax.default", "aten._aminmax.default", "aten._aminmax.dim")
def aminmax(x: Node, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return _minmax(ops.amin, x, dim, keepdim), _minmax(ops.amax, x, dim, keepdim)


def _argminmax(op: Op, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """Return the first position of the extreme along `dim`, or in the flattened tensor if `dim` is None."""
    x = ops.as_dtype(x, u8) if x.dtype == boolean else x
    flat = view(x, (x.type.numel,)) if dim is None or not x.type.rank else x
    result = op(flat, dim=canonicalize_dim(dim or 0, flat.type.rank), keepdim=False)
    if keepdim and x.type.rank:
        d = None if dim is None else canonicalize_dim(dim, x.type.rank)
        return view(result, tuple(1 if d is None or k == d else size for k, size in enumerate(x.shape)))
    return result


def _extreme_and_index(value: Op, index: Op, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return _minmax(value, x, (dim,), keepdim), _argminmax(index, x, dim, keepdim)


converts("aten.argmax.default")(partial(_argminmax, ops.argmax))
converts("aten.argmin.default")(partial(_argminmax, ops.argmin))
converts("aten.max.dim")(partial(_extreme_and_index, ops.amax, ops.argmax))
converts("aten.min.dim")(partial(_extreme_and_index, ops.amin, ops.argmin))


def _any_or_all(op: Op, x: Node, dim: Dims = None, keepdim: bool = False) -> Node:
    """Return a bool, or u8 if `x` is u8, as PyTorch does."""
    result = _reduced(op, as_bool(x), dim, keepdim)
    return ops.as_dtype(result, u8) if x.dtype == u8 else result


converts("aten.any.default", "aten.any.dim", "aten.any.dims", "aten._is_any_true.default")(
    partial(_any_or_all, ops.any_)
)
converts("aten.all.default", "aten.all.dim", "aten.all.dims", "aten._is_all_true.default")(
    partial(_any_or_all, ops.all_)
)


@converts("aten.var.correction")
def var(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Node:
    return _reduced(ops.var, x, dim, keepdim, correction=1 if correction is None else correction)


@converts("aten.std.correction")
def std(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> Node:
    return ops.sqrt(var(x, dim, correction, keepdim))


def _corrected_if_unbiased(
    op: Callable[..., Node], x: Node, dim: Dims = None, unbiased: bool = True, keepdim: bool = False
) -> Node:
    return op(x, dim, int(unbiased), keepdim)


converts("aten.var.dim")(partial(_corrected_if_unbiased, var))
converts("aten.std.dim")(partial(_corrected_if_unbiased, std))


@converts("aten.var_mean.correction")
def var_mean(x: Node, dim: Dims = None, correction: float | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return var(x, dim, correction, keepdim), mean(x, dim, keepdim)


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
    return ops.as_dtype(ops.pow_(_sum_of_powers(x, ord, dim, keepdim), 1.0 / ord), x.dtype)


def _sum_of_powers(x: Node, ord: float, dim: Dims, keepdim: bool) -> Node:
    return _reduced(ops.sum_, ops.pow_(ops.abs_(widen_half(x)), float(ord)), dim, keepdim)


@converts("aten.linalg__powsum.default")
def powsum(x: Node, ord: float = 2, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Node:
    x = as_float(x) if dtype is None else ops.as_dtype(x, from_torch(dtype))
    return ops.as_dtype(_sum_of_powers(x, ord, dim, keepdim), x.dtype)


def _softmax_along(op: Op, x: Node, dim: int, half_to_float: bool) -> Node:
    x = ops.as_dtype(x, f32) if half_to_float else as_float(x)
    return op(x, dim=canonicalize_dim(dim, x.type.rank))


def _softmax_of_dtype(op: Op, x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    return _softmax_along(op, x if dtype is None else ops.as_dtype(x, from_torch(dtype)), dim, half_to_float=False)


for _op in (ops.softmax, ops.log_softmax):
    converts(f"aten._{_op.name}.default")(partial(_softmax_along, _op))
    converts(f"aten.{_op.name}.int")(partial(_softmax_of_dtype, _op))


@converts("aten.topk.default")
def topk(x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Node, ...]:
    """Convert a selection; unsorted results may be in any order, and sorted ones are in one."""
    return ops.result_nodes(ops.topk(x, k=k, dim=canonicalize_dim(dim, x.type.rank), largest=largest))


@converts("aten.sort.default", "aten.sort.stable")
def sort(x: Node, dim: int = -1, descending: bool = False, stable: bool | None = None) -> tuple[Node, ...]:
    dim = canonicalize_dim(dim, x.type.rank)
    return ops.result_nodes(ops.sort(x, dim=dim, descending=descending, stable=bool(stable)))


@converts("aten.argsort.default", "aten.argsort.stable")
def argsort(x: Node, dim: int = -1, descending: bool = False, stable: bool = False) -> Node:
    return sort(x, dim, descending, stable)[1]
