"""Attention whose scores the user's functions change and hide, one number at a time: `torch.nn.attention.flex_attention`.

The blocks in which PyTorch's kernel leaves scores out follow from the function that hides them, so only that is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from compiler.frontend.aten.contraction import attention_scores
from compiler.frontend.promotion import Scalar
from compiler.ir import ops
from compiler.ir.graph import Node


class PerPlace(Protocol):
    def __call__(self, module: Any, numbers: Sequence[Node], others: Sequence[Any]) -> Any:
        """What a graph of numbers gives for all places: `numbers` are tensors of them, `others` what it reads besides."""
        ...


Mask: TypeAlias = Sequence[Any]
"""What `BlockMask.as_tuple` gives: sizes, lists of blocks and, last, the graph that says of a place whether it counts."""


def flex_attention(
    per_place: PerPlace, q: Node, k: Node, v: Node, change: Any, mask: Mask, scale: float | Scalar, options: Any,
    change_reads: Sequence[Any] = (), mask_reads: Sequence[Any] = (),
) -> tuple[Node, Node, Node]:  # fmt: skip
    """The result, and of each row the log of the sum of exponentials and the largest score, in base 2."""
    scores = attention_scores(q, ops.shared_heads(k, q.shape[1]), None, False, scale)
    hidden = _hidden(per_place, scores, change, mask, change_reads, mask_reads)
    last = (scores.type.rank - 1,)
    p = ops.as_dtype(ops.probabilities(hidden, may_be_empty=True), v.dtype)
    y = ops.as_dtype(ops.matmul(p, ops.shared_heads(v, q.shape[1])), q.dtype)
    return y, _in_base_2(ops.logsumexp(hidden, dims=last)), _in_base_2(ops.amax(hidden, dims=last))


def _hidden(
    per_place: PerPlace, scores: Node, change: Any, mask: Mask, change_reads: Sequence[Any], mask_reads: Sequence[Any]
) -> Node:
    """The scores as `change` has them, -inf where the mask hides them."""
    places = _places(scores)
    changed = per_place(change, (scores, *places), change_reads)
    return ops.where(per_place(mask[-1], places, mask_reads), ops.as_dtype(changed, scores.dtype), float("-inf"))


def _places(scores: Node) -> list[Node]:
    """The batch, head, query and key of every score, each along its own dimension."""
    rank = scores.type.rank
    return [
        ops.reshape(ops.iota(size=d), shape=tuple(d if j == k else 1 for j in range(rank)))
        for k, d in enumerate(scores.shape)
    ]


def _in_base_2(x: Node) -> Node:
    return ops.mul(x, 1.0 / math.log(2.0))


ATTENTION: dict[str, Callable[..., tuple[Node, ...]]] = {"flex_attention": flex_attention}
