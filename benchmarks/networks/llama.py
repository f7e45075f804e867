"""A decoder in the shape of Llama: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023).

Queries share keys and values in groups: Ainslie et al., "GQA" (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; the defaults are those of SmolLM-135M, with a cache of 512 tokens."""

    layers: int = 30
    width: int = 576
    heads: int = 9
    shared_heads: int = 3
    hidden: int = 1536
    words: int = 49152
    cached: int = 512


class Attention(nn.Module):
    """Attention of one new token to all tokens so far, whose keys and values are buffers: f32[1, 1, d] -> f32[1, 1, d]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size = shape.width // shape.heads
        shared = shape.shared_heads * self.size
        self.query, self.merge = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(shape.width, shared, bias=False) for _ in range(2))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, shape.shared_heads, shape.cached, self.size))

    def forward(self, x: Tensor, position: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        projected = self.query(x), self.key(x), self.value(x)
        q, k, v = (y.unflatten(-1, (-1, self.size)).transpose(1, 2) for y in projected)
        self.keys[:, :, position] = rotate(k, *rotation)
        self.values[:, :, position] = v
        mixed = scaled_dot_product_attention(rotate(q, *rotation), self.keys, self.values, mask, enable_gqa=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a gated MLP, with residuals."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = (nn.RMSNorm(shape.width, eps=1e-5) for _ in range(2))
        self.attention = Attention(shape)
        self.gate, self.up = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, position: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), position, rotation, mask)
        y = self.before_mlp(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Decoder with a static cache: a token i64[1, 1] at a position i64[1] -> scores of the next word [1, 1, words]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(shape.words, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.score = nn.Linear(shape.width, shape.words, bias=False)
        self.score.weight = self.embed.weight
        size = shape.width // shape.heads
        angles = torch.arange(shape.cached)[:, None] * 1e4 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cosines", angles.cos().repeat(1, 2))
        self.register_buffer("sines", angles.sin().repeat(1, 2))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.embed(token)
        mask = torch.arange(len(self.cosines)) <= position[:, None]
        rotation = self.cosines[position], self.sines[position]
        for layer in self.layers:
            x = layer(x, position, rotation, mask)
        return self.score(self.norm(x))


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn the halves of each head by the angles of a position: Su et al., "RoFormer" (2021)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines
