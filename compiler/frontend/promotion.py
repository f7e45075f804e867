"""PyTorch's type promotion as explicit casts.

Tensors with dimensions outrank those of rank 0, which outrank Python numbers.  An operand of lower rank only matters if
its category is higher (bool < integer < float).
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
    """Python number that depends on sizes or data: a node of rank 0, f64, i64 or bool, that is promoted as a number."""

    node: Node


TensorOrNumber: TypeAlias = Union[Node, Dim, float, SymbolicScalar]
"""Value of an ATen argument of type Tensor or Scalar."""


def common_dtype(*values: TensorOrNumber) -> DType:
    """Return the dtype to which PyTorch promotes `values`."""
    ranked = [[torch_dtype_of(v) for v in values if promotion_rank(v) == rank] for rank in (2, 1, 0)]
    joined = [reduce(torch.promote_types, dtypes) for dtypes in ranked if dtypes]
    return from_torch(reduce(_promote_over, joined))


def promotion_rank(v: TensorOrNumber) -> int:
    """Return 2 for a tensor with dimensions, 1 for one of rank 0, 0 for a number."""
    return 0 if not isinstance(v, Node) else 2 if v.type.rank else 1


def torch_dtype_of(v: TensorOrNumber) -> torch.dtype:
    """Return the `torch.dtype` of a tensor, or the default one for a number."""
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
    """Return `v` as a tensor of `dtype`, by default its own."""
    if isinstance(v, Node):
        return ops.as_dtype(v, dtype or v.dtype)
    if isinstance(v, SymbolicScalar):
        return ops.as_dtype(v.node, dtype or (default_float() if _is_float(v) else i64))
    if isinstance(v, IndexExpr):
        return ops.as_dtype(ops.dim_value(value=v), dtype or i64)
    return scalar_constant(v, dtype or from_torch(torch_dtype_of(v)))


def truncate_scalar(v: TensorOrNumber, dtype: DType) -> TensorOrNumber:
    """Return `v`, rounded toward zero if `dtype` is not a float type, as PyTorch does."""
    if not dtype.is_float and isinstance(v, (Node, SymbolicScalar)):
        node = v.node if isinstance(v, SymbolicScalar) else v
        return ops.trunc(node) if node.dtype.is_float else v
    return int(v) if not dtype.is_float and isinstance(v, float) else v


def default_float() -> DType:
    """Return PyTorch's default floating-point dtype."""
    return from_torch(torch.get_default_dtype())


def as_float(x: Node) -> Node:
    """Return `x`, with integers and bools converted to the default float dtype."""
    return x if x.dtype.is_float else ops.as_dtype(x, default_float())


def widen_half(x: Node) -> Node:
    """Return `x` with reduced floats widened to f32, in which PyTorch computes on them before it rounds the result."""
    return ops.as_dtype(x, x.dtype.compute)


def apply_promoted(op: Op, *values: Any, **attrs: Any) -> Node:
    """Apply `op` to `values`, promoted to a common dtype that it accepts.

    Values beyond the operands are attributes, in the order of their declaration.
    """
    count = len(op.operand_specs)
    attrs |= dict(zip(op.attr_defaults, values[count:], strict=False))
    operands = values[:count]
    kind = op.operand_specs[0].kind
    dtype = common_dtype(*operands)
    if kind == "float" and not dtype.is_float:
        dtype = default_float()
    if kind == "number" and dtype == boolean:  # bools are computed as 0 and 1
        result = op(*(as_node(v, u8) for v in operands), **attrs)
        return result if result.dtype == boolean else ops.as_dtype(result, boolean)
    return op(*(as_node(v, dtype) for v in operands), **attrs)
