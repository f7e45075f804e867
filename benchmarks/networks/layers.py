"""What the convolutional networks share: convolution with batch norm and activation, and weights to start from."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Activation = Callable[[], nn.Module]


def convolution(
    inner: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: Activation | None = nn.ReLU
) -> nn.Sequential:
    """Convolution, batch norm and activation: [n, inner, h, w] -> [n, outer, h / stride, w / stride]."""
    layers = [nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outer)]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def ready(model: nn.Module) -> nn.Module:
    """The model for inference, with weights that keep activations in range and statistics that are not trivial.

    Convolutions start as He et al., "Delving Deep into Rectifiers" (2015), propose.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()
