"""Tensors computed from indices and sizes alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature, scalar_constant
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Generate, Position
from compiler.ir.ops.views import expand, reshape
from compiler.ir.scalar import Expr, Number, const, index_value
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import DType, TensorType, boolean, i64

iota = declare_op(
    "iota", "", Generate(lambda n, i: index_value(i[0])),
    type_rule=lambda s: TensorType(i64, (s.attrs["size"],)), attrs={"size": REQUIRED},
    reference=lambda size: torch.arange(size),
    samples=[sample_input(size=5), sample_input(size=0), sample_input(size=1)],
)  # fmt: skip
"""Vector 0, 1, ..., size - 1."""


def iota_along(shape: Sequence[Dim], dim: int) -> Node:
    """Return 0, 1, ... along dimension `dim` of `shape`; the other dimensions have size 1."""
    return reshape(iota(size=shape[dim]), shape=tuple(d if k == dim else 1 for k, d in enumerate(shape)))


def _dim_value_type(s: Signature) -> TensorType:
    return TensorType(i64, ())


dim_value = declare_op(
    "dim_value", "", Generate(lambda n, i: index_value(n.attrs["value"])),
    type_rule=_dim_value_type, attrs={"value": REQUIRED},
    reference=lambda value: torch.tensor(value),
    samples=[sample_input(value=5), sample_input(value=-1)],
)  # fmt: skip
"""Index expression `value` as an i64 tensor of rank 0."""


def _bounds_mask_type(s: Signature) -> TensorType:
    shape, ends = s.attrs["shape"], s.attrs["ends"]
    if len(shape) != len(ends):
        raise s.error("needs one end per dimension")
    return TensorType(boolean, shape)


def _bounds_mask(n: Node, i: Position) -> Expr:
    bounds = [(d, end) for d, size, end in zip(i, n.shape, n.attrs["ends"], strict=True) if size != end]
    return reduce(and_, (index_value(d) < index_value(end) for d, end in bounds)) if bounds else const(True, boolean)


def _bounds_mask_reference(shape: Sequence[int], ends: Sequence[int]) -> torch.Tensor:
    inside = torch.zeros(tuple(shape), dtype=torch.bool)
    inside[tuple(slice(max(end, 0)) for end in ends)] = True
    return inside


bounds_mask = declare_op(
    "bounds_mask", "", Generate(_bounds_mask), type_rule=_bounds_mask_type, attrs={"shape": REQUIRED, "ends": REQUIRED}, reference=_bounds_mask_reference,
    samples=[sample_input(shape=[4, 5], ends=[3, 5]), sample_input(shape=[4], ends=[0]), sample_input(shape=[], ends=[]), sample_input(shape=[2, 3, 4], ends=[1, 2, 3])],
)  # fmt: skip
"""Bool tensor of `shape`: true where index d < ends[d] in every dimension."""


def full(shape: Sequence[Dim], value: Number, dtype: DType) -> Node:
    """Return a tensor of `shape` filled with `value`."""
    scalar = scalar_constant(value, dtype)
    return expand(scalar, shape=shape) if len(shape) else scalar
