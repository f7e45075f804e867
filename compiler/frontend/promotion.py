"""PyTorch's type promotion, made into explicit casts.

Tensors with dimensions outrank those of rank 0, which outrank Python numbers: a lower rank only counts where it is of a
higher category (bool < integer < float).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias, Union

import torch

from compiler.ir import ops
from compiler.ir.graph.node import Node, Op, scalar_constant
from compiler.ir.symbolic.index_expr import Dim, IndexExpr
from compiler.ir.torch_types import from_torch, to_torch
from compiler.ir.types import DType, boolean, i64, u8


@dataclass(frozen=True)
class SymbolicScalar:
    """A Python number that depends on sizes or data: a node of rank 0, in f64 or i64, that counts as a number."""

    node: Node


TensorOrNumber: TypeAlias = Union[Node, Dim, float, SymbolicScalar]
"""What an ATen argument of type Tensor or Scalar can be."""


def common_dtype(*values: TensorOrNumber) -> DType:
    """The dtype in which PyTorch computes on `values`."""
    ranked = [[torch_dtype_of(v) for v in values if promotion_rank(v) == rank] for rank in (2, 1, 0)]
    joined = [reduce(torch.promote_types, dtypes) for dtypes in ranked if dtypes]
    return from_torch(reduce(_promote_over, joined))


def promotion_rank(v: TensorOrNumber) -> int:
    """2 for a tensor with dimensions, 1 for one of rank 0, 0 for a number."""
    return 0 if not isinstance(v, Node) else 2 if v.type.rank else 1


def torch_dtype_of(v: TensorOrNumber) -> torch.dtype:
    """The `torch.dtype` of a tensor, or the default one for a number."""
    if isinstance(v, Node):
        return to_torch(v.dtype)
    if isinstance(v, bool):
        return torch.bool
    return torch.get_default_dtype() if isinstance(v, float) or _is_float(v) else torch.int64


def _promote_over(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if higher.is_floating_point:
        return higher
    return torch.promote_types(higher, lower) if higher == torch.bool or lower.is_floating_point else higher


def _is_float(v: TensorOrNumber) -> bool:
    return isinstance(v, SymbolicScalar) and v.node.dtype.is_float


def as_node(v: TensorOrNumber, dtype: DType | None = None) -> Node:
    """`v` as a tensor of `dtype` (its own, where None)."""
    if isinstance(v, Node):
        return ops.as_dtype(v, dtype or v.dtype)
    if isinstance(v, SymbolicScalar):
        return ops.as_dtype(v.node, dtype or (default_float() if _is_float(v) else i64))
    if isinstance(v, IndexExpr):
        return ops.as_dtype(ops.dim_value(value=v), dtype or i64)
    return scalar_constant(v, dtype or from_torch(torch_dtype_of(v)))


def truncate_scalar(v: TensorOrNumber, dtype: DType) -> TensorOrNumber:
    """A number or tensor as PyTorch takes it for `dtype`: without its fraction, where that is no float type."""
    if not dtype.is_float and isinstance(v, (Node, SymbolicScalar)):
        node = v.node if isinstance(v, SymbolicScalar) else v
        return ops.trunc(node) if node.dtype.is_float else v
    return int(v) if not dtype.is_float and isinstance(v, float) else v


def default_float() -> DType:
    """PyTorch's default floating-point type."""
    return from_torch(torch.get_default_dtype())


def as_float(x: Node) -> Node:
    """`x`, integers and bools converted to the default float type."""
    return x if x.dtype.is_float else ops.as_dtype(x, default_float())


def apply_promoted(op: Op, *values: Any, **attrs: Any) -> Node:
    """Elementwise `op` on `values` promoted to a common dtype that it takes.

    Values beyond the operands are attributes, in the order of the declaration.
    """
    count = len(op.operand_specs)
    attrs |= dict(zip(op.attr_defaults, values[count:], strict=False))
    operands = values[:count]
    kind = op.operand_specs[0].kind
    dtype = common_dtype(*operands)
    if kind == "float" and not dtype.is_float:
        dtype = default_float()
    if kind == "number" and dtype == boolean:  # bools compute as 0 and 1
        result = op(*(as_node(v, u8) for v in operands), **attrs)
        return result if result.dtype == boolean else ops.as_dtype(result, boolean)
    return op(*(as_node(v, dtype) for v in operands), **attrs)
