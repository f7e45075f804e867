"""ONNX Runtime's MatMulNBits in place of layers whose weights are integers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.low_precision.case import Variant
from benchmarks.peers import PeerCall, onnxruntime

ACCURACY_LEVELS = {"MatMulNBits": 1, "MatMulNBits, x i8": 4}
"""Levels of MatMulNBits: f32 arithmetic, or activations rounded to 8 bits."""

MAX_BLOCK = 256
"""Largest number of weights with one scale that MatMulNBits takes."""


@dataclass(frozen=True)
class IntegerWeights:
    """Weights of a linear layer: signed `codes` [n, k] of `bits` bits, and a scale for each group of a row, [n, groups]."""

    codes: Tensor
    scale: Tensor
    bits: int


class NBitsLinear(nn.Module):
    """Linear layer without bias that ONNX has as one MatMulNBits: f32[..., k] -> f32[..., n].

    Its codes are unsigned, with a zero point in the middle of their range; two of 4 bits share a byte, the first in the lower half.
    `data` is u8[n, blocks, bytes].
    """

    def __init__(self, weights: IntegerWeights, accuracy: int) -> None:
        super().__init__()
        (self.outputs, self.inputs), groups = weights.codes.shape, weights.scale.shape[1]
        size = self.inputs // groups
        self.block = min(MAX_BLOCK, size & -size)  # powers of two
        self.bits, self.accuracy = weights.bits, accuracy
        codes = (weights.codes.to(torch.int16) + (1 << weights.bits - 1)).to(torch.uint8)
        data = codes[:, 0::2] | codes[:, 1::2] << 4 if weights.bits == 4 else codes
        self.register_buffer("data", data.unflatten(1, (-1, self.block * weights.bits // 8)))
        self.register_buffer("scale", weights.scale.float().repeat_interleave(size // self.block, 1))

    def forward(self, x: Tensor) -> Tensor:
        attributes = {"K": self.inputs, "N": self.outputs, "bits": self.bits, "block_size": self.block, "accuracy_level": self.accuracy}  # fmt: skip
        shape = (*x.shape[:-1], self.outputs)
        return torch.onnx.ops.symbolic("com.microsoft::MatMulNBits", (x, self.data, self.scale), attributes, dtype=x.dtype, shape=shape, version=1)  # fmt: skip


WeightsOf = Callable[[nn.Module], IntegerWeights | None]
"""Returns the weights of a layer, None if it has no integer weights."""


def with_nbits(model: nn.Module, weights_of: WeightsOf, accuracy: int) -> nn.Module:
    """Return a copy of `model` with NBitsLinear in place of layers of integer weights."""
    new = copy.deepcopy(model)
    for name, layer in list(new.named_modules()):
        if (weights := weights_of(layer)) is not None:
            new.set_submodule(name, NBitsLinear(weights, accuracy))
    return new


def nbits_call(model: nn.Module, args: Sequence[Tensor], weights_of: WeightsOf, accuracy: int) -> PeerCall:
    """Return a call of ONNX Runtime."""
    return onnxruntime(with_nbits(model, weights_of, accuracy), args)


def nbits_variants(model: nn.Module, args: Sequence[Tensor], weights_of: WeightsOf) -> tuple[Variant, ...]:
    """Return a variant of ONNX Runtime for each accuracy level; none if no layer has integer weights."""
    if all(weights_of(layer) is None for layer in model.modules()):
        return ()
    return tuple(
        Variant(name, "ONNX Runtime", partial(nbits_call, model, args, weights_of, level))
        for name, level in ACCURACY_LEVELS.items()
    )
