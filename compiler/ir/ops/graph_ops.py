"""Ops about the graph itself: groups fused into one kernel, single results of several, calls into PyTorch."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import torch

from compiler.errors import ArgumentError
from compiler.ir.graph.node import REQUIRED, Signature
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Fused, Opaque, TupleGet
from compiler.ir.ops.rules import single_or_tuple
from compiler.ir.types import TensorType, i64, u8


def _fused_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    body = s.attrs["body"]
    for k, (given, formal) in enumerate(zip(s.types, body.inputs, strict=True)):
        if given != formal.result_type:
            raise s.error(f"operand {k} is {given}, but the body takes {formal.result_type}")
    return single_or_tuple(tuple(n.type for n in body.outputs))


fused = declare_op("fused", "operands*!: any", Fused(), type_rule=_fused_type, attrs={"body": REQUIRED})
"""The graph `body` applied to the operands: one kernel to be."""


def _item_type(s: Signature) -> TensorType:
    results: Any = s.types[0]
    if not 0 <= s.attrs["index"] < len(results):
        raise s.error(f"there are {len(results)} results")
    return results[s.attrs["index"]]  # type: ignore[no-any-return]


item = declare_op("item", "results: tuple", TupleGet(), type_rule=_item_type, attrs={"index": REQUIRED},
          reference=lambda results, index: results[index])  # fmt: skip
"""One result of a node that has several."""


def _eager_type(s: Signature) -> TensorType | tuple[TensorType, ...]:
    return single_or_tuple(tuple(TensorType(d, n) for d, n in zip(s.attrs["dtypes"], s.attrs["shapes"], strict=True)))


@cache
def lookup_operator(name: str) -> Any:
    """The operator a name such as "aten.sort.default" stands for."""
    return reduce(getattr, name.split("."), torch.ops)


def fill_template(template: Any, operands: tuple[Any, ...]) -> Any:
    """`template` with "%k" replaced by operand k, "#k" by the number in it, "torch.x" and "device:x" and "operator:x" by what they name, and "text:x" by x."""
    if isinstance(template, tuple):
        return tuple(fill_template(t, operands) for t in template)
    if not isinstance(template, str):
        return template
    if template.startswith("%"):
        return operands[int(template[1:])]
    if template.startswith("#"):
        return operands[int(template[1:])].item()
    if template.startswith("torch."):
        return getattr(torch, template.removeprefix("torch."))
    if template.startswith("device:"):
        return torch.device(template.removeprefix("device:"))
    if template.startswith("operator:"):
        return lookup_operator(template.removeprefix("operator:"))
    return template.removeprefix("text:")


def _eager_reference(
    *operands: torch.Tensor,
    overload: str,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    dtypes: Any,
    shapes: Any,
) -> Any:
    result = lookup_operator(overload)(
        *fill_template(args, operands), **{k: fill_template(v, operands) for k, v in kwargs}
    )
    found = tuple(r for r in result if r is not None) if isinstance(result, (tuple, list)) else (result,)
    return found[0] if len(dtypes) == 1 else found


eager = declare_op("eager", "operands*!: every", Opaque("has no counterpart here and runs in PyTorch", shape_attr="shapes"), type_rule=_eager_type,
           attrs={"overload": REQUIRED, "args": (), "kwargs": (), "dtypes": REQUIRED, "shapes": REQUIRED},
           reference=_eager_reference)  # fmt: skip
"""A PyTorch operator called as it is, on `args` and the pairs `kwargs` with operand k in place of "%k"."""


def _effect_reference(
    *operands: torch.Tensor, overload: str, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
) -> torch.Tensor:
    lookup_operator(overload)(*fill_template(args, operands), **{k: fill_template(v, operands) for k, v in kwargs})
    return torch.empty(0, dtype=torch.uint8)


effect = declare_op("effect", "operands*!: every", Opaque("may raise an error of PyTorch's"), type_rule=lambda s: TensorType(u8, (0,)),
            attrs={"overload": REQUIRED, "args": (), "kwargs": ()}, reference=_effect_reference)  # fmt: skip
"""A PyTorch operator called for its effect alone; operands that `args` leaves out only have to come before."""


def _count_reference(x: torch.Tensor, size: Any) -> torch.Tensor:
    if x < 0:
        raise ArgumentError(f"a number that is used as a size must not be negative, but is {int(x)}")
    return torch.arange(int(x))


count = declare_op("count", "x: integer", Opaque("tells a size", shape_attr="size"), type_rule=lambda s: TensorType(i64, (s.attrs["size"],)),
           attrs={"size": REQUIRED}, reference=_count_reference)  # fmt: skip
"""The numbers 0, 1, ... below the one in `x`: as many as it says, so that the shape tells it."""
