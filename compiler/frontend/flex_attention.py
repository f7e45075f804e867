"""Import of `torch.nn.attention.flex_attention`: attention with the user's `score_mod` and `mask_mod`.

PyTorch's block lists follow from `mask_mod`, so only that function is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from compiler.frontend.conversions.contraction import attention_scores
from compiler.frontend.promotion import SymbolicScalar
from compiler.ir import ops
from compiler.ir.graph.node import Node

ScalarVmap: TypeAlias = Callable[[Any, Sequence[Node], Sequence[Any]], Any]
"""Function (module, tensors, captured) that applies a graph of scalars to all elements of `tensors`; `captured` are its
other operands."""

BlockMaskTuple: TypeAlias = Sequence[Any]
"""Result of `BlockMask.as_tuple`: sizes, lists of blocks and, last, the graph of `mask_mod`."""


def flex_attention(
    scalar_vmap: ScalarVmap, q: Node, k: Node, v: Node, score_mod: Any, block_mask: BlockMaskTuple, scale: float | SymbolicScalar, kernel_options: Any,
    score_mod_buffers: Sequence[Any] = (), mask_mod_buffers: Sequence[Any] = (),
) -> tuple[Node, Node, Node]:  # fmt: skip
    """Return the attention output, and of each row the logsumexp and the maximum of its scores, both in base 2."""
    scores = attention_scores(q, ops.expand_kv_heads(k, q.shape[1]), None, False, scale)
    masked = _masked_scores(scalar_vmap, scores, score_mod, block_mask, score_mod_buffers, mask_mod_buffers)
    last = (scores.type.rank - 1,)
    p = ops.as_dtype(ops.attention_probabilities(masked, may_have_empty_rows=True), v.dtype)
    y = ops.as_dtype(ops.matmul(p, ops.expand_kv_heads(v, q.shape[1])), q.dtype)
    return y, _to_base_2(ops.logsumexp(masked, dims=last)), _to_base_2(ops.amax(masked, dims=last))


def _masked_scores(
    scalar_vmap: ScalarVmap,
    scores: Node,
    score_mod: Any,
    block_mask: BlockMaskTuple,
    score_mod_buffers: Sequence[Any],
    mask_mod_buffers: Sequence[Any],
) -> Node:
    """Return `score_mod` of the scores where `mask_mod` is true, else -inf."""
    positions = _score_positions(scores)
    modified = ops.as_dtype(scalar_vmap(score_mod, (scores, *positions), score_mod_buffers), scores.dtype)
    return ops.where(scalar_vmap(block_mask[-1], positions, mask_mod_buffers), modified, float("-inf"))


def _score_positions(scores: Node) -> list[Node]:
    """Return batch, head, query and key number of every score, each i64 along its own dimension."""
    return [ops.iota_along(scores.shape, k) for k in range(scores.type.rank)]


def _to_base_2(x: Node) -> Node:
    return ops.mul(x, 1.0 / math.log(2.0))


ATTENTION_OPERATORS: dict[str, Callable[..., tuple[Node, ...]]] = {"flex_attention": flex_attention}
