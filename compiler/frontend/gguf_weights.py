"""Quantized weights of GGUF files (Q8_0 and Q4_0) as modules that dequantize them in ordinary PyTorch operators.

weights = read_gguf("model.gguf")
y = torch.nn.functional.linear(x, weights["blk.0.ffn_up.weight"]())
"""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from compiler.errors import TilewrightError

BLOCK = 32
"""Weights that share a scale: neighbours of a row."""

SCALE_BYTES = 2
"""Bytes of the f16 scale that a block begins with."""


class BlockWeight(nn.Module):
    """A matrix of integers with a scale for each BLOCK of a row; a call returns its values in f32."""

    scale: Tensor
    stored: Tensor

    def __init__(self, blocks: Tensor) -> None:
        """Take bytes [rows, blocks, bytes of a block]."""
        super().__init__()
        self.register_buffer("scale", blocks[..., :SCALE_BYTES].contiguous().view(torch.float16).float())
        self.register_buffer("stored", blocks[..., SCALE_BYTES:].contiguous())

    def codes(self) -> Tensor:
        """Return the integers, [rows, blocks, BLOCK]."""
        raise NotImplementedError

    def forward(self) -> Tensor:
        return (self.codes().float() * self.scale).flatten(1)


class Q8Weight(BlockWeight):
    """Q8_0: integers of a byte."""

    def codes(self) -> Tensor:
        return self.stored.view(torch.int8)


class Q4Weight(BlockWeight):
    """Q4_0: a byte holds one integer of the first half of a block and one of the second, each plus 8."""

    def codes(self) -> Tensor:
        return torch.cat((self.stored & 15, self.stored >> 4), dim=2).to(torch.int8) - 8


FORMATS: dict[str, type[BlockWeight]] = {"Q8_0": Q8Weight, "Q4_0": Q4Weight}


def read_gguf(path: str | os.PathLike[str]) -> dict[str, BlockWeight | Tensor]:
    """Return the tensors of a file by name: modules for matrices of FORMATS, tensors for F32 and F16.

    Raises TilewrightError for other formats, and ImportError without the package gguf (`pip install tilewright[gguf]`).
    """
    from gguf import GGUFReader

    found: dict[str, BlockWeight | Tensor] = {}
    for t in GGUFReader(os.fspath(path)).tensors:
        data, kind = torch.from_numpy(t.data.copy()), t.tensor_type.name
        if kind in FORMATS and data.ndim == 2:
            columns = int(t.shape[0])
            found[t.name] = FORMATS[kind](data.view(len(data), columns // BLOCK, -1))
        elif kind in ("F32", "F16"):
            found[t.name] = data
        else:
            known = ", ".join((*FORMATS, "F32", "F16"))
            raise TilewrightError(
                f"{os.fspath(path)}: {t.name} is {kind} of {t.data.ndim} dimensions; formats that are read: {known}"
            )
    return found
