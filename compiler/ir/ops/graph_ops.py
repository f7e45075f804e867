"""Structural ops of a graph: fused groups, results of multi-result nodes, calls into PyTorch."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import torch

from compiler.errors import ArgumentError
from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Fused, Opaque, TupleGet
from compiler.ir.ops.rules import single_or_tuple
from compiler.ir.types import TensorType, i64, u8


def _fused_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    body = s.attrs["body"]
    for k, (actual, formal) in enumerate(zip(s.types, body.inputs, strict=True)):
        if actual != formal.result_type:
            raise s.error(f"operand {k} is {actual}, but the body takes {formal.result_type}")
    return single_or_tuple(tuple(n.type for n in body.outputs))


fused = declare_op("fused", "operands*!: any", Fused(), type_rule=_fused_type, attrs={"body": REQUIRED})
"""Graph `body` applied to the operands; it becomes one kernel."""


def _tuple_get_type(s: Signature) -> TensorType:
    results: Any = s.types[0]
    if not 0 <= s.attrs["index"] < len(results):
        raise s.error(f"index {s.attrs['index']} is out of range for {len(results)} results")
    return results[s.attrs["index"]]  # type: ignore[no-any-return]


tuple_get = declare_op("tuple_get", "results: tuple", TupleGet(), type_rule=_tuple_get_type, attrs={"index": REQUIRED},
          reference=lambda results, index: results[index])  # fmt: skip
"""Result number `index` of a multi-result node."""


def result_nodes(node: Node) -> tuple[Node, ...]:
    """Return one node for each result of `node`: itself if it has only one."""
    if not isinstance(node.result_type, tuple):
        return (node,)
    return tuple(tuple_get(node, index=k) for k in range(len(node.result_type)))


def _eager_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    return single_or_tuple(tuple(TensorType(d, n) for d, n in zip(s.attrs["dtypes"], s.attrs["shapes"], strict=True)))


@cache
def lookup_operator(name: str) -> Any:
    """Return the PyTorch operator with a name such as "aten.sort.default"."""
    return reduce(getattr, name.split("."), torch.ops)


def fill_template(template: Any, operands: tuple[Any, ...]) -> Any:
    """Replace the strings in nested tuples: "%k" by operand k, "#k" by the number in it, "text:x" by x.

    "%k@1,0" is the operand whose transpose (dimension 1 outermost in memory, then 0) is operand k: a view with such strides.
    "complex:x" becomes a number; "torch.x", "device:x" and "operator:x" the object of PyTorch that they name.
    """
    if isinstance(template, tuple):
        return tuple(fill_template(t, operands) for t in template)
    if not isinstance(template, str):
        return template
    if template.startswith(("%", "#")):
        number, permutation = operand_reference(template)
        operand = operands[number].permute(permutation) if permutation else operands[number]
        return operand.item() if template.startswith("#") else operand
    if template.startswith("torch."):
        return getattr(torch, template.removeprefix("torch."))
    if template.startswith("complex:"):
        return complex(template.removeprefix("complex:"))
    if template.startswith("device:"):
        return torch.device(template.removeprefix("device:"))
    if template.startswith("operator:"):
        return lookup_operator(template.removeprefix("operator:"))
    return template.removeprefix("text:")


def operand_reference(template: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of the operand that a template such as "%k@1,0" names, and how its dimensions are permuted."""
    number, _, order = template[1:].partition("@")
    dims = [int(d) for d in order.split(",") if d]
    return int(number), tuple(dims.index(d) for d in range(len(dims)))


def _eager_reference(
    *operands: torch.Tensor,
    overload: str,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    dtypes: Any,
    shapes: Any,
    reason: str,
) -> Any:
    result = lookup_operator(overload)(
        *fill_template(args, operands), **{k: fill_template(v, operands) for k, v in kwargs}
    )
    tensors = tuple(r for r in result if r is not None) if isinstance(result, (tuple, list)) else (result,)
    return tensors[0] if len(dtypes) == 1 else tensors


eager = declare_op("eager", "operands*!: every", Opaque("has no op in Graph IR", shape_attr="shapes"), type_rule=_eager_type,
           attrs={"overload": REQUIRED, "args": (), "kwargs": (), "dtypes": REQUIRED, "shapes": REQUIRED, "reason": ""},
           reference=_eager_reference)  # fmt: skip
"""Call of PyTorch operator `overload` on `args` and the pairs `kwargs`, filled in by `fill_template`; `reason` says why."""


def _effect_reference(
    *operands: torch.Tensor, overload: str, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
) -> torch.Tensor:
    lookup_operator(overload)(*fill_template(args, operands), **{k: fill_template(v, operands) for k, v in kwargs})
    return torch.empty(0, dtype=torch.uint8)


effect = declare_op("effect", "operands*!: every", Opaque("may raise a PyTorch error"), type_rule=lambda s: TensorType(u8, (0,)),
            attrs={"overload": REQUIRED, "args": (), "kwargs": ()}, reference=_effect_reference)  # fmt: skip
"""Call of a PyTorch operator for its side effect.  Operands that `args` does not use only order the call after them."""


def _sized_arange_reference(x: torch.Tensor, size: Any) -> torch.Tensor:
    if x < 0:
        raise ArgumentError(f"a size that data decides must not be negative, got {int(x)}")
    return torch.arange(int(x))


sized_arange = declare_op("sized_arange", "x: integer", Opaque("defines a dynamic size", shape_attr="size"), type_rule=lambda s: TensorType(i64, (s.attrs["size"],)),
           attrs={"size": REQUIRED}, reference=_sized_arange_reference)  # fmt: skip
"""Vector 0, 1, ..., x - 1 for a scalar tensor `x`: its shape [size] defines the unbacked symbol `size`."""
