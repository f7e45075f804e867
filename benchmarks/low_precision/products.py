"""Matrix products with constant weights in bf16, f16 and 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import Tensor, nn

from benchmarks.low_precision.case import Case, through_onnx

SHAPES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (128, 768, 3072), (128, 3072, 768))
"""M, K, N."""

quantized = torch.ops.quantized_decomposed


class QuantizedLinear(nn.Module):
    """Linear layer with a ReLU between two others of 8 bits: u8[m, k] -> u8[m, n].

    Activations have a scale and a zero point, and weights i8[n, k] a scale for each row, as PT2E quantizes them.
    """

    def __init__(self, weight: Tensor, x: Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(1) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("zero_point", torch.zeros(len(weight), dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(len(weight)))
        low, high = float(x.min()), float(x.max())
        self.x_scale = (high - low) / 255
        self.x_zero_point = round(-low / self.x_scale)
        self.y_scale = float(nn.functional.linear(x, weight, self.bias).detach().max()) / 255

    def quantize(self, x: Tensor) -> Tensor:
        """Return activations as the layer takes them: f32[m, k] -> u8[m, k]."""
        return quantized.quantize_per_tensor(x, self.x_scale, self.x_zero_point, 0, 255, torch.uint8)

    def forward(self, x: Tensor) -> Tensor:
        x = quantized.dequantize_per_tensor(x, self.x_scale, self.x_zero_point, 0, 255, torch.uint8)
        w = quantized.dequantize_per_channel(self.weight, self.scale, self.zero_point, 0, -128, 127, torch.int8)
        y = torch.relu(nn.functional.linear(x, w, self.bias))
        return quantized.quantize_per_tensor(y, self.y_scale, 0, 0, 255, torch.uint8)


def float_product(dtype: torch.dtype, limit: str, m: int, k: int, n: int) -> Case:
    """Return a product of floats, f32 results rounded to `dtype`."""
    torch.manual_seed(0)
    layer = nn.Linear(k, n, bias=False).eval().to(dtype)
    return Case(layer, (torch.randn(m, k).to(dtype),), work=2 * m * k * n, limit=limit)


def integer_product(m: int, k: int, n: int) -> Case:
    """Return a product of u8 and i8 whose results are quantized again."""
    torch.manual_seed(0)
    x = torch.randn(m, k)
    layer = QuantizedLinear(torch.randn(n, k) / k**0.5, x).eval().requires_grad_(False)
    args = (layer.quantize(x),)
    return Case(layer, args, (through_onnx(layer, args),), 2 * m * k * n, "i8")


def products() -> dict[str, Callable[[], Case]]:
    """Return a case for each format and shape; no multiply-add takes f16, so that f32 is its limit."""
    formats: dict[str, Callable[[int, int, int], Case]] = {
        "bf16": partial(float_product, torch.bfloat16, "bf16"),
        "f16": partial(float_product, torch.float16, "f32"),
        "i8": integer_product,
    }
    return {f"{f} {m} x {k} x {n}": partial(make, m, k, n) for f, make in formats.items() for m, k, n in SHAPES}
