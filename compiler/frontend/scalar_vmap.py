"""Graphs of single numbers, imported for all places of a tensor at once: what users of `flex_attention` say of one score.

A number of such a graph becomes a tensor of `RANK` dimensions, each 1 or as many as there are places along it.
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
"""Batch, head, query and key."""

POINTWISE_STRUCTURES = (Elementwise, Gather, Generate, IndexMap)
"""What gives each place a number that comes of the numbers there."""


def broadcast_scalar(x: Any) -> Any:
    """A tensor of rank 0 as the same number at all places; anything else as it is."""
    return ops.reshape(x, shape=(1,) * SCORE_RANK) if isinstance(x, Node) and x.type.rank == 0 else x


def vmapped_result(node: torch.fx.Node, operands: Sequence[Any], result: Any) -> Any:
    """`result`, which the conversion of `node` gave of `operands` for all places; Refusal if it may mix what different places have."""
    expected = node.meta.get("val")
    given = [n.meta.get("val") for n in node.all_input_nodes]
    if not isinstance(expected, torch.Tensor) or not isinstance(result, Node):
        raise ConversionError("it has several results")
    if any(isinstance(v, torch.Tensor) and v.dim() == 0 for v in given):
        if expected.dim():
            raise ConversionError("it makes a tensor of a number")
        _require_pointwise(result, operands)
    return broadcast_scalar(result) if expected.dim() == 0 else result


def _require_pointwise(result: Node, operands: Sequence[Any]) -> None:
    """Refusal if something between operands and result may take numbers of other places."""
    pending, seen = [result], set(tree_leaves(operands))
    while pending:
        n = pending.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op is not CONSTANT and not isinstance(n.structure, POINTWISE_STRUCTURES):
            raise ConversionError("it takes more than numbers of one place")
        pending.extend(n.operands)
