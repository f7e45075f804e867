"""Shared parts of convolutional networks: convolution with batch norm and activation, and initialization."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Activation = Callable[[], nn.Module]


def convolution(
    inner: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: Activation | None = nn.ReLU
) -> nn.Sequential:
    """Return convolution, batch norm and activation: [n, inner, h, w] -> [n, outer, h / stride, w / stride]."""
    layers = [nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outer)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def ready(model: nn.Module) -> nn.Module:
    """Initialize a model for inference, with random batch norm statistics; activations stay in range.

    Convolutions are initialized as in He et al., "Delving Deep into Rectifiers" (2015).
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()
