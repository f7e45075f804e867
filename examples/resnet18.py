"""A ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", 2015) with random weights."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from compiler.tools.comparison import Comparison
from compiler.tools.demo import compare_and_print


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut: [n, inner, h, w] -> [n, outer, h / stride, w / stride]."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inner != outer or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images [n, 3, h, w] -> class scores [n, classes].  `width` is the number of channels of the first stage."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        stem = [
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [
            block
            for stage, (inner, outer) in enumerate(pairwise(widths))
            for block in (Block(inner, outer, 1 if stage == 0 else 2), Block(outer, outer, 1))
        ]
        self.features = nn.Sequential(*stem, *stages)
        self.classify = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x).mean(dim=(2, 3)))


def with_statistics(model: nn.Module) -> nn.Module:
    """Set the model to inference, with random running statistics of its batch norms."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()


def main(width: int = 64, size: int = 224, seconds: float = 1.0) -> Comparison:
    torch.manual_seed(0)
    return compare_and_print(with_statistics(ResNet18(width=width)), (torch.randn(1, 3, size, size),), seconds)


if __name__ == "__main__":
    main()
