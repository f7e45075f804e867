"""Conversions of operators that create tensors from sizes and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from compiler.frontend.conversions.views import expand
from compiler.frontend.promotion import TensorOrNumber, as_node, default_float, torch_dtype_of, truncate_scalar
from compiler.frontend.registry import ConversionError, converts
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, floordiv
from compiler.ir.torch_types import from_torch
from compiler.ir.types import DType, f64, i64


def _dtype_or_default(dtype: torch.dtype | None, default: DType) -> DType:
    return default if dtype is None else from_torch(dtype)


def filled(shape: Sequence[Dim], value: TensorOrNumber, dtype: DType) -> Node:
    """Return a tensor with `value` in every element."""
    return expand(as_node(value, dtype), tuple(shape))


@converts("aten.full.default")
def full(shape: Sequence[Dim], value: TensorOrNumber, dtype: torch.dtype | None = None) -> Node:
    return filled(shape, value, _dtype_or_default(dtype, from_torch(torch_dtype_of(value))))


@converts(
    "aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_permuted.default", "aten._efficientzerotensor.default"
)  # fmt: skip
def empty(shape: Sequence[Dim], layout: Sequence[Dim] = (), dtype: torch.dtype | None = None) -> Node:
    return filled(shape, 0, _dtype_or_default(dtype, default_float()))


@converts("aten.full_like.default")
def full_like(x: Node, value: TensorOrNumber, dtype: torch.dtype | None = None) -> Node:
    return filled(x.shape, value, _dtype_or_default(dtype, x.dtype))


@converts("aten.new_full.default")
def new_full(x: Node, shape: Sequence[Dim], value: TensorOrNumber, dtype: torch.dtype | None = None) -> Node:
    return filled(shape, value, _dtype_or_default(dtype, x.dtype))


def _full_of(value: int, shape: Sequence[Dim], dtype: torch.dtype | None = None) -> Node:
    return filled(shape, value, _dtype_or_default(dtype, default_float()))


def _full_like_of(value: int, x: Node, dtype: torch.dtype | None = None) -> Node:
    return full_like(x, value, dtype)


def _new_full_of(value: int, x: Node, shape: Sequence[Dim], dtype: torch.dtype | None = None) -> Node:
    return new_full(x, shape, value, dtype)


for _name, _value in (("zeros", 0), ("ones", 1)):
    converts(f"aten.{_name}.default")(partial(_full_of, _value))
    converts(f"aten.{_name}_like.default")(partial(_full_like_of, _value))
    converts(f"aten.new_{_name}.default")(partial(_new_full_of, _value))


@converts("aten.scalar_tensor.default", "prims.scalar_tensor.default")
def scalar_tensor(value: TensorOrNumber, dtype: torch.dtype | None = None) -> Node:
    return as_node(value, _dtype_or_default(dtype, default_float()))


@converts("aten.arange.start", "aten.arange.start_step")
def arange(start: Any, end: Any, step: Any = 1, dtype: torch.dtype | None = None) -> Node:
    """Return start, start + step, ...; integer types truncate the arguments.

    PyTorch computes the number of elements from the truncated arguments for i64 only.
    """
    arguments = (start, end, step)
    wanted = _dtype_or_default(dtype, i64 if _all_integers(*arguments) else default_float())
    size = _range_length(*(truncate_scalar(v, i64) for v in arguments) if wanted == i64 else arguments)
    start, end, step = (truncate_scalar(v, wanted) for v in arguments)
    position, integral = ops.iota(size=size), _all_integers(start, end, step)
    if integral and step == 1 and not isinstance(start, IndexExpr) and start == 0:
        return ops.as_dtype(position, wanted)
    compute = i64 if integral else f64
    scaled = ops.mul(ops.as_dtype(position, compute), as_node(step, compute))
    return ops.as_dtype(ops.add(scaled, as_node(start, compute)), wanted)


converts("aten.arange.default")(partial(arange, 0))


def _all_integers(*numbers: Any) -> bool:
    return all(isinstance(v, (int, IndexExpr)) for v in numbers)


def _range_length(start: Any, end: Any, step: Any) -> Dim:
    """Return the number of elements of `arange(start, end, step)`."""
    if not _all_integers(start, end, step):
        if any(isinstance(v, IndexExpr) for v in (start, end, step)):
            raise ConversionError("a range with a symbolic size needs integer arguments")
        steps: int = math.ceil((end - start) / step)
        return max(steps, 0)
    descending = isinstance(step, int) and step < 0  # a symbolic step is a size, hence positive
    size: Dim = floordiv(end - start + step + 1, step) if descending else -floordiv(start - end, step)
    return max(size, 0) if isinstance(size, int) else size


@converts(
    "aten.linspace.default",
    *(f"aten.linspace.{kinds}" for kinds in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")),
)
def linspace(start: TensorOrNumber, end: TensorOrNumber, steps: int, dtype: torch.dtype | None = None) -> Node:
    """Compute each element from the nearer end, so that both ends are exact; integer types truncate the ends first."""
    wanted = _dtype_or_default(dtype, default_float())
    first, last = (as_node(truncate_scalar(v, wanted), f64) for v in (start, end))
    position = ops.as_dtype(ops.iota(size=steps), f64)
    step = ops.div(ops.sub(last, first), float(max(steps - 1, 1)))
    low = ops.add(ops.mul(position, step), first)
    high = ops.sub(last, ops.mul(ops.sub(float(steps - 1), position), step))
    return ops.as_dtype(ops.where(ops.lt(position, max(steps / 2, 1)), low, high), wanted)


def _triangle(compare: Op, x: Node, diagonal: int = 0) -> Node:
    """Keep the elements whose column compares with the row as wanted, and replace the others by 0."""
    rows, columns = x.shape[-2:]
    row, column = ops.reshape(ops.iota(size=rows), shape=(rows, 1)), ops.iota(size=columns)
    edge = ops.add(row, diagonal) if diagonal else row
    return ops.where(compare(column, edge), x, as_node(0, x.dtype))


converts("aten.tril.default")(partial(_triangle, ops.le))
converts("aten.triu.default")(partial(_triangle, ops.ge))


@converts("aten.one_hot.default")
def one_hot(x: Node, classes: int = -1) -> Node:
    if classes == -1:
        raise ConversionError("the number of classes is data-dependent; pass num_classes")
    return ops.as_dtype(ops.eq(ops.unsqueeze(x, -1), ops.as_dtype(ops.iota(size=classes), x.dtype)), i64)
