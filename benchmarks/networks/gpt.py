"""A block of GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    """Pre-norm transformer block with a cache of keys and values: causal attention, then an MLP, with residuals.

    Without a cache (prefill): f32[n, t, d] -> f32[n, t, d] and keys and values f32[n, heads, t, d / heads], causally.
    With a cache of c tokens (decode): also takes keys and values f32[n, heads, c, d / heads], and returns them extended.
    """

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(
        self, x: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.project(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if keys is not None and values is not None:
            k, v = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=keys is None)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x)), k, v
