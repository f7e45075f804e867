"""U-Net: Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015), padded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def twice(inner: int, outer: int) -> nn.Sequential:
    """Return two 3x3 convolutions with ReLU: [n, inner, h, w] -> [n, outer, h, w]."""
    first, second = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


class UNet(nn.Module):
    """Images [n, 3, h, w] -> scores of each pixel [n, classes, h, w]; each level has half the size of the one before."""

    def __init__(self, widths: Sequence[int] = (64, 128, 256, 512, 1024), classes: int = 2) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(twice(inner, outer) for inner, outer in [(3, widths[0]), *pairs])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for narrow, wide in reversed(pairs))
        self.up = nn.ModuleList(twice(wide, narrow) for narrow, wide in reversed(pairs))
        self.classify = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.down[0](x)]
        for layers in self.down[1:]:
            levels.append(layers(nn.functional.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for grow, layers in zip(self.grow, self.up, strict=True):
            x = layers(torch.cat((levels.pop(), grow(x)), dim=1))
        return self.classify(x)
