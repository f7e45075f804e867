"""Clamps of values that are within the bounds already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch

from compiler.analysis.scalar_chain import apply_chain, is_clamp, is_increasing, scalar_chain, varying_operand
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.interpret.graph import interpret
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DType, TensorType
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class RemoveClamps(GraphPass):
    """Remove the clamps of a quantization that an earlier clamp makes redundant, such as that of an activation.

    %low = maximum %x, 0.0  %a = minimum %low, 6.0  %r = round (mul %a, 42.5)  %q = cast (minimum (maximum %r, 0.0), 255.0) {dtype=u8}
      ->
    %low = maximum %x, 0.0  %a = minimum %low, 6.0  %r = round (mul %a, 42.5)  %q = cast %r {dtype=u8}

    Functions that never decrease map bounds to bounds, which are computed.  A clamp that changes neither bound changes no value
    between them, and NaN passes all.  Only chains that end in integers are looked at, where the sign of a zero is lost.
    """

    name = "remove-clamps"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            if isinstance(n.result_type, tuple) or not n.dtype.is_integer:
                continue
            chain = scalar_chain(n)
            kept = without_redundant_clamps(chain)
            if len(kept) < len(chain) and context.may_apply(self, f"{len(chain) - len(kept)} clamps within bounds", n):
                below = varying_operand(chain[-1])
                assert below is not None
                new[n] = apply_chain(kept, below)
        return ir.replace_nodes(new)


def without_redundant_clamps(chain: Sequence[Node]) -> list[Node]:
    """Return a chain without the clamps whose operand is within their bounds; the last of it comes first."""
    kept: list[Node] = []
    bounds: torch.Tensor | None = None
    for n in reversed(chain):
        x = varying_operand(n)
        assert x is not None
        given = full_range(x.dtype) if bounds is None else bounds
        increases = is_increasing(n) and (n.dtype.is_float or is_clamp(n))  # other results of integers may wrap
        bounds = apply_to(n, x.dtype, given) if given is not None and increases else None
        if bounds is None or given is None or not (is_clamp(n) and torch.equal(bounds, given)):
            kept.append(n)
    return kept[::-1]


def full_range(dtype: DType) -> torch.Tensor | None:
    """Return the least and the greatest value of a dtype; None for booleans."""
    if dtype.is_float:
        return torch.tensor([-inf, inf]).to(to_torch(dtype))
    if not dtype.is_integer:
        return None
    info = torch.iinfo(to_torch(dtype))
    return torch.tensor([info.min, info.max], dtype=to_torch(dtype))


def apply_to(n: Node, dtype: DType, values: torch.Tensor) -> torch.Tensor:
    """Return a function of one value of `dtype` and of constants at some `values`."""
    x = input_node("x", TensorType(dtype, tuple(values.shape)))
    (result,) = interpret(Graph((x,), (apply_chain([n], x),)), (values,))
    return result
