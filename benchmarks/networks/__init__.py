"""Networks of whole-model benchmarks, written from their papers, with random weights (MiniLM's are trained)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.networks.dense import DenseNet
from benchmarks.networks.gpt import Block
from benchmarks.networks.layers import ready
from benchmarks.networks.mobile import efficientnet_b0, mobilenet_v2
from benchmarks.networks.resnet import resnet18, resnet50
from benchmarks.networks.squeeze import SqueezeNet
from benchmarks.networks.swin import SwinTransformer
from benchmarks.networks.unet import UNet
from benchmarks.networks.vit import VisionTransformer
from compiler.tools.demo import minilm

Network = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
"""Makes a model in inference mode and the arguments of one call, f32 of batch size 1, the same in each call."""

TOKENS = 128
"""Length of the sentence for MiniLM."""

CACHE = (1, 12, 512, 64)
"""Shape of GPT-2's cached keys, or values, of 512 tokens."""


def network(build: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Network:
    """Return a network built by `build`, with normally distributed inputs of these shapes."""

    def make() -> tuple[nn.Module, tuple[Tensor, ...]]:
        torch.manual_seed(0)
        return ready(build()), tuple(torch.randn(shape) for shape in shapes)

    return make


def image_network(build: Callable[[], nn.Module], size: int = 224) -> Network:
    """Return a network built by `build`, with one image of `size` x `size` as input."""
    return network(build, (1, 3, size, size))


def sentence() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return MiniLM with a sentence of TOKENS tokens, without mask."""
    torch.manual_seed(0)
    ids = torch.randint(0, 30000, (1, TOKENS))
    return minilm()[0], (ids, torch.ones_like(ids))


NETWORKS: dict[str, Network] = {
    "ResNet-18": image_network(resnet18),
    "ResNet-50": image_network(resnet50),
    "MobileNetV2": image_network(mobilenet_v2),
    "EfficientNet-B0": image_network(efficientnet_b0),
    "SqueezeNet 1.1": image_network(SqueezeNet),
    "DenseNet-121": image_network(DenseNet),
    "U-Net": image_network(UNet, 256),
    "ViT-S/16": image_network(VisionTransformer),
    "Swin-T": image_network(SwinTransformer),
    "GPT-2 prefill": network(Block, (1, 512, 768)),
    "GPT-2 decode": network(Block, (1, 1, 768), CACHE, CACHE),
    "MiniLM": sentence,
}
