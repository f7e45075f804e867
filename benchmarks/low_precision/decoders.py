"""A decoder of 135 million parameters in f32, bf16, and with weights of 8 and 4 bits that torchao's `quantize_` makes.

A call reads one token and writes its keys and values into a static cache: 1000 / ms tokens in a second.  Reading the weights
bounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.low_precision.case import Case
from benchmarks.low_precision.nbits import IntegerWeights, nbits_variants
from benchmarks.low_precision.vectors import GROUP
from benchmarks.networks.layers import ready
from benchmarks.networks.llama import Llama, Shape


def to_bf16(model: nn.Module) -> None:
    model.bfloat16()


def to_int8(model: nn.Module) -> None:
    """Quantize the weights of linear layers to 8 bits, with a scale for each row."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())


def to_int4(model: nn.Module) -> None:
    """Quantize the weights of linear layers to 4 bits, with a scale for each GROUP."""
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)))


FORMATS: dict[str, tuple[Callable[[nn.Module], object], float]] = {
    "f32": (lambda model: model, 4),
    "bf16": (to_bf16, 2),
    "i8": (to_int8, 1),
    f"4 bits, groups of {GROUP}": (to_int4, 0.5 + 4 / GROUP),
}
"""How a model is converted, and the bytes of a weight with its share of the scales."""


def decoder(convert: Callable[[nn.Module], object], shape: Shape) -> Llama:
    """Return a converted decoder with random weights and a cache of random tokens."""
    torch.manual_seed(0)
    model = ready(Llama(shape)).requires_grad_(False)
    for layer in model.layers:
        layer.attention.keys.normal_()
        layer.attention.values.normal_()
    convert(model)
    return model


def decoder_case(name: str, shape: Shape) -> Case:
    """Return a decoder in a format, and its last token."""
    convert, weight_bytes = FORMATS[name]
    model = decoder(convert, shape)
    weights = sum(m.in_features * m.out_features for m in model.modules() if isinstance(m, nn.Linear))
    args = torch.tensor([[1]]), torch.tensor([shape.cached - 1])
    return Case(model, args, nbits_variants(model, args, integer_weights), weights * weight_bytes, "reads")


def integer_weights(layer: nn.Module) -> IntegerWeights | None:
    """Return the weights of a linear layer that torchao has quantized, None for any other."""
    if not isinstance(layer, nn.Linear) or not hasattr(w := layer.weight, "qdata"):
        return None
    return IntegerWeights(w.qdata, w.scale, 4 if getattr(w, "target_dtype", None) == torch.int4 else 8)


def decoders() -> dict[str, Callable[[], Case]]:
    """Return a case for each format."""
    return {name: partial(decoder_case, name, Shape()) for name in FORMATS}
