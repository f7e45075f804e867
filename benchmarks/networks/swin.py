"""Swin-T: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows" (2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

WINDOW = 7
"""Height and width of an attention window, in positions."""


def windows(x: Tensor) -> Tensor:
    """Partition images into windows: [n, h, w, c] -> [n * h / WINDOW * w / WINDOW, WINDOW ** 2, c]."""
    tiles = x.unflatten(1, (-1, WINDOW)).unflatten(3, (-1, WINDOW))
    return tiles.transpose(2, 3).flatten(0, 2).flatten(1, 2)


def joined(x: Tensor, size: int) -> Tensor:
    """Invert `windows` for images of `size` x `size`."""
    rows = size // WINDOW
    tiles = x.reshape(-1, rows, rows, WINDOW, WINDOW, x.shape[-1])
    return tiles.transpose(2, 3).flatten(1, 2).flatten(2, 3)


def relative_positions() -> Tensor:
    """Return the index of the relative offset of each pair of positions, among (2 * WINDOW - 1) ** 2: i64[49, 49]."""
    positions = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW))
    offsets = positions[:, None] - positions[None, :] + WINDOW - 1
    return offsets[..., 0] * (2 * WINDOW - 1) + offsets[..., 1]


def shifted_mask(size: int, shift: int) -> Tensor:
    """Return -100 for pairs that are in one window only by the cyclic shift, else 0: f32[windows, 1, 49, 49]."""
    position = torch.arange(size)
    band = (position >= size - WINDOW).long() + (position >= size - shift).long()
    region = windows((3 * band[:, None] + band)[None, :, :, None]).squeeze(-1)
    return (region[:, :, None] != region[:, None, :]).float()[:, None] * -100.0


class WindowAttention(nn.Module):
    """Attention within windows shifted by `shift` positions: [n, size, size, d] -> [n, size, size, d]."""

    positions: Tensor
    mask: Tensor | None

    def __init__(self, width: int, heads: int, size: int, shift: int) -> None:
        super().__init__()
        self.heads, self.size, self.shift = heads, size, shift
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.biases = nn.Parameter(torch.randn((2 * WINDOW - 1) ** 2, heads) * 0.02)
        self.register_buffer("positions", relative_positions())
        self.register_buffer("mask", shifted_mask(size, shift) if shift else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), dims=(1, 2))
        q, k, v = self.project(windows(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.biases[self.positions].permute(2, 0, 1)[None]
        if self.mask is not None:
            images = len(q) // len(self.mask)
            bias = (bias + self.mask).repeat(images, 1, 1, 1)
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        x = joined(self.merge(mixed), self.size)
        return torch.roll(x, (self.shift, self.shift), dims=(1, 2)) if self.shift else x


class Block(nn.Module):
    """Pre-norm block of window attention and an MLP, with residuals: [n, h, w, d] -> [n, h, w, d]."""

    def __init__(self, width: int, heads: int, size: int, shift: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = WindowAttention(width, heads, size, shift)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Merge(nn.Module):
    """Merges 2 x 2 positions into one of twice the width: [n, h, w, d] -> [n, h / 2, w / 2, 2 * d]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = (x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2])
        return self.reduce(self.norm(torch.cat(corners, dim=-1)))


class ChannelsLast(nn.Module):
    """Moves channels to the last dimension: [n, c, h, w] -> [n, h, w, c]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


class SwinTransformer(nn.Module):
    """Images [n, 3, size, size] -> class scores [n, 1000].  `depths`: blocks of each stage."""

    def __init__(
        self, size: int = 224, width: int = 96, heads: int = 3, depths: tuple[int, ...] = (2, 2, 6, 2)
    ) -> None:
        super().__init__()
        side = size // 4
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelsLast(), nn.LayerNorm(width)]
        for stage, depth in enumerate(depths):
            if stage:
                layers.append(Merge(width))
                width, heads, side = 2 * width, 2 * heads, side // 2
            shifts = (WINDOW // 2 if block % 2 and side > WINDOW else 0 for block in range(depth))
            layers += [Block(width, heads, side, shift) for shift in shifts]
        self.features = nn.Sequential(*layers, nn.LayerNorm(width))
        self.classify = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x).mean(dim=(1, 2)))
