"""SqueezeNet 1.1: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters" (2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """1x1 to `narrow` channels, then 1x1 and 3x3 in parallel: [n, inner, h, w] -> [n, 8 * narrow, h, w]."""

    def __init__(self, inner: int, narrow: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inner, narrow, 1)
        self.points, self.windows = nn.Conv2d(narrow, 4 * narrow, 1), nn.Conv2d(narrow, 4 * narrow, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = torch.relu(self.squeeze(x))
        return torch.relu(torch.cat((self.points(squeezed), self.windows(squeezed)), dim=1))


class SqueezeNet(nn.Module):
    """Images [n, 3, h, w] -> class scores [n, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2), nn.ReLU(), shrink(),
            Fire(64, 16), Fire(128, 16), shrink(),
            Fire(128, 32), Fire(256, 32), shrink(),
            Fire(256, 48), Fire(384, 48), Fire(384, 64), Fire(512, 64),
            nn.Conv2d(512, 1000, 1), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).mean(dim=(2, 3))


def shrink() -> nn.MaxPool2d:
    """Return a max pooling that halves height and width, rounded up."""
    return nn.MaxPool2d(3, 2, ceil_mode=True)
