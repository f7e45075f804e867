"""Tensors made from nothing but their shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.ir.graph import Node, scalar_constant
from compiler.ir.index import Dim
from compiler.ir.op import REQUIRED, Signature, op, sample
from compiler.ir.ops.views import expand
from compiler.ir.scalar import Number, index_value
from compiler.ir.structure import Generate
from compiler.ir.types import DType, TensorType, i64

iota = op(
    "iota", "", Generate(lambda n, i: index_value(i[0])),
    type=lambda s: TensorType(i64, (s.attrs["size"],)), attrs={"size": REQUIRED},
    reference=lambda size: torch.arange(size),
    samples=[sample(size=5), sample(size=0), sample(size=1)],
)  # fmt: skip
"""0, 1, ..., size - 1"""


def _dim_value_type(s: Signature) -> TensorType:
    return TensorType(i64, ())


dim_value = op(
    "dim_value", "", Generate(lambda n, i: index_value(n.attrs["value"])),
    type=_dim_value_type, attrs={"value": REQUIRED},
    reference=lambda value: torch.tensor(value),
    samples=[sample(value=5), sample(value=-1)],
)  # fmt: skip
"""A symbolic dimension as a tensor of rank 0."""


def full(shape: Sequence[Dim], value: Number, dtype: DType) -> Node:
    """`value` everywhere."""
    scalar = scalar_constant(value, dtype)
    return expand(scalar, shape=shape) if len(shape) else scalar
