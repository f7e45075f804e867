"""DenseNet-121: Huang et al., "Densely Connected Convolutional Networks" (2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GROWTH = 32
"""Channels that each layer adds."""


def normalized(inner: int, outer: int, kernel: int) -> nn.Sequential:
    """Return batch norm, ReLU and convolution."""
    convolution = nn.Conv2d(inner, outer, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inner), nn.ReLU(), convolution)


class DenseLayer(nn.Module):
    """Concatenates GROWTH new channels to the input: [n, c, h, w] -> [n, c + GROWTH, h, w]."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(normalized(inner, 4 * GROWTH, 1), normalized(4 * GROWTH, GROWTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), dim=1)


class DenseNet(nn.Module):
    """Images [n, 3, h, w] -> class scores [n, 1000].  `depths`: the layers of each block."""

    def __init__(self, depths: tuple[int, ...] = (6, 12, 24, 16)) -> None:
        super().__init__()
        channels = 2 * GROWTH
        stem = (nn.Conv2d(3, channels, 7, 2, padding=3, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        layers: list[nn.Module] = [*stem, nn.MaxPool2d(3, 2, padding=1)]
        for block, depth in enumerate(depths):
            if block:
                layers += [normalized(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
            layers += [DenseLayer(channels + k * GROWTH) for k in range(depth)]
            channels += depth * GROWTH
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU())
        self.classify = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x).mean(dim=(2, 3)))
