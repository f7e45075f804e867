"""Conversions of scans: cumulative sums, products, minima and maxima; and of differences, which undo sums."""

from __future__ import annotations

from functools import partial

import torch

from compiler.frontend.conversions.reductions import as_sum_dtype
from compiler.frontend.conversions.views import canonicalize_dim, cat, slice_, view
from compiler.frontend.promotion import as_float
from compiler.frontend.registry import converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.types import boolean, u8


def _scanned(op: Op, x: Node, dim: int) -> Node:
    """Apply `op` along `dim`; a tensor of rank 0 is scanned as a vector of one element."""
    if not x.type.rank:
        return view(op(view(x, (1,)), dim=0), ())
    return op(x, dim=canonicalize_dim(dim, x.type.rank))


def _scanned_sum(op: Op, x: Node, dim: int, dtype: torch.dtype | None = None) -> Node:
    return _scanned(op, as_sum_dtype(x, dtype), dim)


@converts("aten.logcumsumexp.default")
def logcumsumexp(x: Node, dim: int) -> Node:
    return _scanned(ops.logcumsumexp, as_float(x), dim)


@converts("aten.diff.default")
def diff(x: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None) -> Node:
    """Subtract from each element the one before, `n` times; of boolean ones, tell which differ."""
    x = cat([part for part in (prepend, x, append) if part is not None], dim)
    for _ in range(n):
        if x.shape[canonicalize_dim(dim, x.type.rank)] == 0:
            break
        x = (ops.ne if x.dtype == boolean else ops.sub)(slice_(x, dim, 1), slice_(x, dim, 0, -1))
    return x


def _minmax_scan(values: Op, indices: Op, x: Node, dim: int) -> tuple[Node, Node]:
    numbers = ops.as_dtype(x, u8) if x.dtype == boolean else x
    return ops.as_dtype(_scanned(values, numbers, dim), x.dtype), _scanned(indices, numbers, dim)


converts("aten.cumsum.default")(partial(_scanned_sum, ops.cumsum))
converts("aten.cumprod.default")(partial(_scanned_sum, ops.cumprod))
converts("aten.cummax.default")(partial(_minmax_scan, ops.cummax, ops.cummax_index))
converts("aten.cummin.default")(partial(_minmax_scan, ops.cummin, ops.cummin_index))
