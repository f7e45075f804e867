"""Attention whose scores the user's functions change and hide, one number at a time: `torch.nn.attention.flex_attention`.

The blocks in which PyTorch's kernel leaves scores out follow from the function that hides them, so only that is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from compiler.frontend.conversions.contraction import attention_scores
from compiler.frontend.promotion import SymbolicScalar
from compiler.ir import ops
from compiler.ir.graph.node import Node


class ScalarVmap(Protocol):
    def __call__(self, module: Any, scalars: Sequence[Node], captured: Sequence[Any]) -> Any:
        """What a graph of numbers gives for all places: `numbers` are tensors of them, `others` what it reads besides."""
        ...


BlockMaskTuple: TypeAlias = Sequence[Any]
"""What `BlockMask.as_tuple` gives: sizes, lists of blocks and, last, the graph that says of a place whether it counts."""


def flex_attention(
    scalar_vmap: ScalarVmap, q: Node, k: Node, v: Node, score_mod: Any, block_mask: BlockMaskTuple, scale: float | SymbolicScalar, kernel_options: Any,
    score_mod_buffers: Sequence[Any] = (), mask_mod_buffers: Sequence[Any] = (),
) -> tuple[Node, Node, Node]:  # fmt: skip
    """The result, and of each row the log of the sum of exponentials and the largest score, in base 2."""
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
    """The scores as `change` has them, -inf where the mask hides them."""
    places = _score_positions(scores)
    changed = scalar_vmap(score_mod, (scores, *places), score_mod_buffers)
    return ops.where(
        scalar_vmap(block_mask[-1], places, mask_mod_buffers), ops.as_dtype(changed, scores.dtype), float("-inf")
    )


def _score_positions(scores: Node) -> list[Node]:
    """The batch, head, query and key of every score, each along its own dimension."""
    rank = scores.type.rank
    return [
        ops.reshape(ops.iota(size=d), shape=tuple(d if j == k else 1 for j in range(rank)))
        for k, d in enumerate(scores.shape)
    ]


def _to_base_2(x: Node) -> Node:
    return ops.mul(x, 1.0 / math.log(2.0))


ATTENTION_OPERATORS: dict[str, Callable[..., tuple[Node, ...]]] = {"flex_attention": flex_attention}
