"""Arguments of calls into PyTorch: tensors as operands of an opaque op, all else as its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from compiler.frontend.promotion import SymbolicScalar
from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.ir.torch_types import to_torch
from compiler.ir.types import f64, i64


@dataclass(frozen=True)
class Permuted:
    """Argument of an eager call that has the strides of `node`, row-major, with its dimensions in `order`."""

    node: Node
    order: tuple[int, ...]


def eager_call_attrs(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[Node], dict[str, Any]]:
    """Return operands (the tensors among the arguments) and attributes of an opaque op that calls `target`.

    Attributes are those of `ops.eager` that name the operator and its arguments: `overload`, `args` and `kwargs`.
    """
    operands: list[Node] = []
    template = _argument_template(args, operands)
    keywords = tuple((k, _argument_template(v, operands)) for k, v in kwargs.items())
    return operands, {"overload": _operator_name(target), "args": template, "kwargs": keywords}


def _operator_name(target: Any) -> str:
    """Return the qualified name of an operator below `torch.ops`."""
    return f"higher_order.{target}" if isinstance(target, torch._ops.HigherOrderOperator) else str(target)


def _argument_template(argument: Any, operands: list[Node]) -> Any:
    """Return `argument` as an attribute (template syntax: see `ops.eager`); append its tensors to `operands`."""
    if isinstance(argument, Node):
        operands.append(argument)
        return f"%{len(operands) - 1}"
    if isinstance(argument, Permuted):
        operands.append(argument.node)
        return f"%{len(operands) - 1}@{','.join(map(str, argument.order))}"
    if isinstance(argument, SymbolicScalar):
        operands.append(argument.node)
        return f"#{len(operands) - 1}"
    if isinstance(argument, tuple):
        return tuple(_argument_template(a, operands) for a in argument)
    if isinstance(argument, torch.device):
        return f"device:{argument}"
    if isinstance(argument, complex):
        return f"complex:{argument}"
    if isinstance(argument, torch._ops.OpOverload):
        return f"operator:{argument}"
    if isinstance(argument, str):
        return f"text:{argument}"
    return str(argument) if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format)) else argument


def as_number(x: Node, value: torch.SymInt | torch.SymFloat) -> Node:
    """Convert a tensor of an opaque dtype to the dtype of the Python number that it holds."""
    dtype = i64 if isinstance(value, torch.SymInt) else f64
    keywords = (("dtype", str(to_torch(dtype))),)
    return ops.eager(
        x,
        overload="aten._to_copy.default",
        args=("%0",),
        kwargs=keywords,
        dtypes=(dtype,),
        shapes=(x.shape,),
        reason=f"{x.dtype} elements",
    )
