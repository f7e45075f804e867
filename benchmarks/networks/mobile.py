"""MobileNetV2 and EfficientNet-B0, networks of inverted residuals.

MobileNetV2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (2018).
EfficientNet-B0: Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import Activation, convolution

MOBILE_STAGES = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 3, 32, 3, 2), (6, 3, 64, 4, 2), (6, 3, 96, 3, 1), (6, 3, 160, 3, 2),
    (6, 3, 320, 1, 1),
)  # fmt: skip
EFFICIENT_STAGES = (
    (1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1), (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)  # fmt: skip
"""For each stage: expansion, size of the depthwise kernel, channels, blocks, stride of the first block."""


class SqueezeExcite(nn.Module):
    """Scales each channel by a factor in 0..1 computed from the means of all channels: [n, c, h, w] -> [n, c, h, w]."""

    def __init__(self, channels: int, narrow: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(channels, narrow, 1), nn.Conv2d(narrow, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3), keepdim=True)
        return x * torch.sigmoid(self.excite(nn.functional.silu(self.squeeze(means))))


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise k x k, 1x1 projection: [n, inner, h, w] -> [n, outer, h / stride, w / stride].

    With `squeeze`, channels are scaled by SqueezeExcite through a quarter of the input's channels.
    """

    def __init__(
        self, inner: int, outer: int, kernel: int, stride: int, expansion: int, activation: Activation, squeeze: bool
    ) -> None:
        super().__init__()
        wide = inner * expansion
        expand = [convolution(inner, wide, activation=activation)] if expansion > 1 else []
        attend = [SqueezeExcite(wide, inner // 4)] if squeeze else []
        depthwise = convolution(wide, wide, kernel, stride, groups=wide, activation=activation)
        self.body = nn.Sequential(*expand, depthwise, *attend, convolution(wide, outer, activation=None))
        self.residual = inner == outer and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNet(nn.Module):
    """Images [n, 3, h, w] -> class scores [n, 1000]."""

    def __init__(self, stages: tuple[tuple[int, ...], ...], activation: Activation, squeeze: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [convolution(3, 32, 3, 2, activation=activation)]
        inner = 32
        for expansion, kernel, outer, depth, stride in stages:
            for block in range(depth):
                step = 1 if block else stride
                layers.append(InvertedResidual(inner, outer, kernel, step, expansion, activation, squeeze))
                inner = outer
        self.features = nn.Sequential(*layers, convolution(inner, 1280, activation=activation))
        self.classify = nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x).mean(dim=(2, 3)))


def mobilenet_v2() -> MobileNet:
    return MobileNet(MOBILE_STAGES, nn.ReLU6, squeeze=False)


def efficientnet_b0() -> MobileNet:
    return MobileNet(EFFICIENT_STAGES, nn.SiLU, squeeze=True)
