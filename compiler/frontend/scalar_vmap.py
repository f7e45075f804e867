"""Vectorized import of scalar graphs, such as `flex_attention`'s `score_mod`, for all elements of a tensor at once.

Each scalar becomes a tensor of rank `SCORE_RANK`; a dimension along which it does not vary has size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from compiler.frontend.registry import ConversionError
from compiler.ir import ops
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import Elementwise, Gather, Generate, IndexMap

SCORE_RANK = 4
"""Rank of attention scores: batch, head, query and key."""

POINTWISE_STRUCTURES = (Elementwise, Gather, Generate, IndexMap)
"""Structures whose element i depends only on element i of each vectorized operand."""


def broadcast_scalar(x: Any) -> Any:
    """Reshape a tensor of rank 0 so that it broadcasts over the scores; return anything else unchanged."""
    return ops.reshape(x, shape=(1,) * SCORE_RANK) if isinstance(x, Node) and x.type.rank == 0 else x


def vmapped_result(node: torch.fx.Node, operands: Sequence[Any], result: Any) -> Any:
    """Check and return `result`, the vectorized conversion of `node` applied to `operands`.

    Raises ConversionError if an element of it may depend on other elements of the operands.
    """
    expected = node.meta.get("val")
    inputs = [n.meta.get("val") for n in node.all_input_nodes]
    if not isinstance(expected, torch.Tensor) or not isinstance(result, Node):
        raise ConversionError("has several results")
    if any(isinstance(v, torch.Tensor) and v.dim() == 0 for v in inputs):
        if expected.dim():
            raise ConversionError("makes a tensor from a scalar")
        _require_pointwise(result, operands)
    return broadcast_scalar(result) if expected.dim() == 0 else result


def _require_pointwise(result: Node, operands: Sequence[Any]) -> None:
    """Raise ConversionError unless every node between operands and result is pointwise."""
    pending, seen = [result], set(tree_leaves(operands))
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op is not CONSTANT and not isinstance(n.structure, POINTWISE_STRUCTURES):
            raise ConversionError("is not pointwise")
        pending.extend(n.operands)
