"""ResNet-18 and ResNet-50: He et al., "Deep Residual Learning for Image Recognition" (2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import convolution

Body = Callable[[int, int, int], nn.Sequential]
"""Makes the layers of a residual block from input channels, output channels and stride."""


def basic(inner: int, outer: int, stride: int) -> nn.Sequential:
    """Return two 3x3 convolutions."""
    return nn.Sequential(convolution(inner, outer, 3, stride), convolution(outer, outer, 3, activation=None))


def bottleneck(inner: int, outer: int, stride: int) -> nn.Sequential:
    """Return a 3x3 convolution with the stride on a quarter of the channels, between two of 1x1."""
    narrow = outer // 4
    return nn.Sequential(
        convolution(inner, narrow), convolution(narrow, narrow, 3, stride), convolution(narrow, outer, activation=None)
    )


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)): [n, inner, h, w] -> [n, outer, h / stride, w / stride]."""

    def __init__(self, body: Body, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        same = inner == outer and stride == 1
        self.body = body(inner, outer, stride)
        self.shortcut = nn.Identity() if same else convolution(inner, outer, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Images [n, 3, h, w] -> class scores [n, classes].  `depths`: blocks of each stage; `width`: channels of the first."""

    def __init__(self, body: Body, depths: Sequence[int], width: int, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        inner = 64
        for stage, depth in enumerate(depths):
            for block in range(depth):
                blocks.append(Residual(body, inner, width << stage, 2 if stage and not block else 1))
                inner = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def resnet18() -> ResNet:
    return ResNet(basic, (2, 2, 2, 2), 64)


def resnet50() -> ResNet:
    return ResNet(bottleneck, (3, 4, 6, 3), 256)
