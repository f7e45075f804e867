"""Products of one row with weights of 8 and 4 bits, which are bound by reading the weights.

Each case is a stack of layers with as many bytes as `read_rate` reads, because the weights of one layer would stay in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.low_precision.case import Case, Variant
from benchmarks.low_precision.ggml import ggml_call
from benchmarks.low_precision.nbits import IntegerWeights, nbits_variants
from benchmarks.peak import READ_BYTES

SIZE = 4096
"""Rows and columns of the weights of a layer."""

GROUP = 32
"""Weights of 4 bits with one scale."""


class ScaledLinear(nn.Module):
    """Linear layer without bias with weights of 8 bits, i8 or f8, and a scale for each row: f32[m, k] -> f32[m, n]."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        scale = weight.abs().amax(1) / info.max
        scaled = weight / scale[:, None]
        self.register_buffer("weight", (scaled if dtype.is_floating_point else scaled.round()).to(dtype))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


class PackedLinear(nn.Module):
    """Linear layer without bias with weights of 4 bits, two in a byte, the first in the lower half.

    Each GROUP weights of a row have one scale of type `dtype`: f32[m, k] -> f32[m, n].
    """

    def __init__(self, weight: Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        groups = weight.unflatten(1, (-1, GROUP))
        scale = (groups.abs().amax(2) / 7).to(dtype)
        codes = ((groups / scale[..., None]).round() + 8).to(torch.uint8).flatten(1)
        self.register_buffer("packed", codes[:, 0::2] | codes[:, 1::2] << 4)
        self.register_buffer("scale", scale)

    def codes(self) -> Tensor:
        """Return u8[n, k], with a zero point of 8."""
        return torch.stack((self.packed & 15, self.packed >> 4), dim=2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        groups = (self.codes().to(x.dtype) - 8).unflatten(1, (-1, GROUP)) * self.scale[..., None].to(x.dtype)
        return nn.functional.linear(x, groups.flatten(1))


def stack(make: Callable[[Tensor], nn.Module], size: int, target_bytes: int) -> nn.Sequential:
    """Return equal layers of `size` x `size` weights that hold `target_bytes` or more."""
    torch.manual_seed(0)
    layers = [make(torch.randn(size, size) / size**0.5)]
    while (count := weight_bytes(nn.Sequential(*layers))) < target_bytes:
        layers += [make(torch.randn(size, size) / size**0.5) for _ in range((target_bytes - 1) * len(layers) // count)]
    return nn.Sequential(*layers).eval()


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all buffers: weights and scales."""
    return sum(b.numel() * b.element_size() for b in model.buffers())


def integer_weights(layer: nn.Module) -> IntegerWeights | None:
    """Return the weights of a layer of this module, None if they are floats."""
    if isinstance(layer, PackedLinear):
        return IntegerWeights(layer.codes().to(torch.int8) - 8, layer.scale.float(), 4)
    if isinstance(layer, ScaledLinear) and not layer.weight.is_floating_point():
        return IntegerWeights(layer.weight, layer.scale[:, None], 8)
    return None


def vector_case(make: Callable[[Tensor], nn.Module], size: int, target_bytes: int) -> Case:
    """Return a stack of layers and one row, with MatMulNBits and llama.cpp if they take such weights."""
    layers = stack(make, size, target_bytes)
    x = torch.randn(1, size)
    variants = nbits_variants(layers, (x,), integer_weights)
    if weights := [w for layer in layers if (w := integer_weights(layer))]:
        variants += (Variant("llama.cpp, x i8", "llama.cpp", partial(ggml_call, weights, x)),)
    return Case(layers, (x,), variants, weight_bytes(layers), "reads")


FORMATS: dict[str, Callable[[Tensor], nn.Module]] = {
    "i8": partial(ScaledLinear, dtype=torch.int8),
    f"4 bits, groups of {GROUP}": PackedLinear,
    f"4 bits, groups of {GROUP}, f16 scales": partial(PackedLinear, dtype=torch.float16),
    "f8e4m3fn": partial(ScaledLinear, dtype=torch.float8_e4m3fn),
}
"""Layer of each format; Q4_0 has scales of f16."""


def vectors(size: int = SIZE, target_bytes: int = READ_BYTES) -> dict[str, Callable[[], Case]]:
    """Return a case for each format."""
    return {name: partial(vector_case, make, size, target_bytes) for name, make in FORMATS.items()}
