"""Scaled dot-product attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Composite
from compiler.ir.ops.arithmetic import add, div, mul, sub
from compiler.ir.ops.cast import as_dtype
from compiler.ir.ops.contraction import matmul
from compiler.ir.ops.creation import iota
from compiler.ir.ops.logic import eq, le, where
from compiler.ir.ops.reductions import amax, sum_
from compiler.ir.ops.transcendental import exp
from compiler.ir.ops.views import expand, reshape, transpose
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import TensorType, boolean, broadcast_shapes


def _attention_type(s: Signature) -> TensorType:
    q, k, v = s.types[:3]
    if min(q.rank, k.rank, v.rank) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise s.error("takes q [..., L, E], k [..., S, E] and v [..., S, F]")
    heads = _grouped_heads(s) if s.attrs["grouped"] else broadcast_shapes(*(t.shape[:-2] for t in (q, k, v)))
    scores = (*heads, q.shape[-2], k.shape[-2])
    if len(s.types) > 3 and broadcast_shapes(s.types[3].shape, scores) != scores:
        raise s.error(f"mask of shape {list(s.types[3].shape)} does not broadcast to the scores, {list(scores)}")
    return TensorType(q.dtype, (*heads, q.shape[-2], v.shape[-1]))


def _grouped_heads(s: Signature) -> tuple[Dim, ...]:
    """Leading dimensions of the result of grouped-query attention: each head of k and v serves several heads of q."""
    q, k, v = s.types[:3]
    if min(q.rank, k.rank, v.rank) < 3:
        raise s.error("grouped attention needs q, k and v with a head dimension")
    heads, kv_heads = q.shape[-3], (k.shape[-3], v.shape[-3])
    if any(h != heads and isinstance(h, int) and isinstance(heads, int) and (h == 0 or heads % h) for h in kv_heads):
        raise s.error(f"{heads} heads of q are not a multiple of {kv_heads[0]} heads of k and {kv_heads[1]} of v")
    return (*broadcast_shapes(*(t.shape[:-3] for t in (q, k, v))), heads)


def expand_kv_heads(x: Node, heads: Any) -> Node:
    """Repeat each head of `x` [..., H, S, E] `heads` / H times: [..., heads, S, E]."""
    *batch, kv_heads, rows, columns = x.shape
    if kv_heads == heads:
        return x
    grouped = reshape(x, shape=(*batch, kv_heads, 1, rows, columns))
    expanded = expand(grouped, shape=(*batch, kv_heads, heads // kv_heads, rows, columns))
    return reshape(expanded, shape=(*batch, heads, rows, columns))


def masked_scores(scores: Node, mask: Node | None, causal: bool) -> Node:
    """Return `scores` [..., L, S] with -inf where a bool mask is false or causality hides, or plus a mask of numbers."""
    if mask is not None:
        is_bool = mask.dtype == boolean
        scores = where(mask, scores, float("-inf")) if is_bool else add(scores, as_dtype(mask, scores.dtype))
    if causal:
        rows, columns = scores.shape[-2:]
        scores = where(le(iota(size=columns), reshape(iota(size=rows), shape=(rows, 1))), scores, float("-inf"))
    return scores


def attention_probabilities(scores: Node, may_have_empty_rows: bool) -> Node:
    """Softmax over the last dimension; fully masked rows become zeros, as in PyTorch, if `may_have_empty_rows`."""
    last = (scores.type.rank - 1,)
    top = amax(scores, dims=last, keepdim=True)
    if may_have_empty_rows:
        top = where(eq(top, float("-inf")), 0.0, top)
    e = exp(sub(scores, top))
    total = sum_(e, dims=last, keepdim=True)
    return div(e, where(eq(total, 0.0), 1.0, total) if may_have_empty_rows else total)


def _attention(node: Node, q: Node, k: Node, v: Node, mask: Node | None = None) -> Node:
    """softmax(q k^T * scale + mask) v, with scores and probabilities in f32 or wider."""
    if node.attrs["grouped"]:
        k, v = (expand_kv_heads(x, q.shape[-3]) for x in (k, v))
    wide = q.dtype.compute
    scores = mul(matmul(q, transpose(k, -1, -2), dtype=wide), node.attrs["scale"])
    p = attention_probabilities(masked_scores(scores, mask, node.attrs["causal"]), mask is not None)
    return as_dtype(matmul(p, v, dtype=wide), node.dtype)


def _attention_reference(q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool, scale: float, grouped: bool) -> Any:
    """Reference by PyTorch, op by op where its fused kernels disagree: scores that are not finite, masked ones times 0 or less."""
    if grouped:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.matmul(q.to(wide), k.mT.to(wide)) * scale
    causal_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if not bool(scores.isfinite().all()) or (causal and scale <= 0):
        return torch.matmul(_masked_softmax(scores, mask, causal_mask if causal else None).to(v.dtype), v)
    if mask is not None and causal:  # PyTorch accepts only one of them
        mask, causal = mask.masked_fill(causal_mask, False if mask.dtype == torch.bool else float("-inf")), False
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


def _masked_softmax(scores: Any, mask: Any, causal_mask: Any) -> Any:
    """Softmax of score tensors; zeros in rows that `mask` hides completely."""
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if causal_mask is not None:
        scores = scores.masked_fill(causal_mask, float("-inf"))
    empty = (scores == float("-inf")).all(-1, keepdim=True) & (mask is not None)
    return scores.softmax(-1).masked_fill(empty, 0.0)


attention = declare_op(
    "attention", "q: float, k: float, v: float, mask?!: any", Composite(_attention), type_rule=_attention_type,
    attrs={"scale": REQUIRED, "causal": False, "grouped": False}, reference=_attention_reference,
    samples=[
        sample_input("f32[2, 3, 5, 8]", "f32[2, 3, 7, 8]", "f32[2, 3, 7, 4]", scale=0.35), sample_input("f32[5, 8]", "f32[7, 8]", "f32[7, 8]", scale=1.0),
        sample_input("f32[2, 3, 6, 8]", "f32[2, 3, 6, 8]", "f32[2, 3, 6, 8]", scale=0.35, causal=True),
        sample_input("f32[2, 3, 5, 8]", "f32[2, 3, 7, 8]", "f32[2, 3, 7, 8]", "bool[2, 1, 1, 7]", scale=0.35),
        sample_input("f32[2, 3, 5, 8]", "f32[2, 3, 7, 8]", "f32[2, 3, 7, 8]", "f32[5, 7]", scale=0.35),
        sample_input("f32[5, 8]", "f32[7, 8]", "f32[7, 8]", "bool[5, 7]", scale=0.35, causal=True),
        sample_input("f32[1, 4, 5, 8]", "f32[1, 2, 5, 8]", "f32[1, 2, 5, 8]", scale=0.35, grouped=True),
        sample_input("bf16[1, 2, 5, 8]", "bf16[1, 2, 7, 8]", "bf16[1, 2, 7, 8]", "bool[5, 7]", scale=0.35),
    ],
)  # fmt: skip
"""Attention of q [..., L, E], k [..., S, E], v [..., S, F].  A bool mask is true where a key takes part.

With `grouped`, several heads of q share one of k and v (Ainslie et al., "GQA", 2023)."""
