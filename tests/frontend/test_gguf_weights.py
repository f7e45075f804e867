"""GGUF files, written with gguf's own writer: values, products, and the bytes that compiled programs keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from frontend_kit import require
from torch import Tensor, nn

import compiler
from compiler.errors import TilewrightError
from compiler.frontend.gguf_weights import FORMATS, BlockWeight, read_gguf

require("gguf")  # before the imports from it (E402)

from gguf import GGMLQuantizationType, GGUFWriter, quants  # noqa: E402  # only where the extra is installed


def write_gguf(path: Path, weight: Tensor, kind: str) -> np.ndarray:
    """Write one tensor and return the values that it has in the file."""
    format_ = GGMLQuantizationType[kind]
    data, writer = quants.quantize(weight.numpy(), format_), GGUFWriter(path, "llama")
    writer.add_tensor("w", data, raw_dtype=format_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return quants.dequantize(data, format_)  # type: ignore[no-any-return]  # gguf has no types


class Layer(nn.Module):
    def __init__(self, weight: BlockWeight) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight())


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8), ("Q4_0", 4)])
def test_products_read_the_weights_as_they_are_stored(tmp_path: Path, kind: str, bits: int) -> None:
    torch.manual_seed(0)
    rows, columns = 320, 512
    values = write_gguf(tmp_path / "w.gguf", torch.randn(rows, columns), kind)
    weight = read_gguf(tmp_path / "w.gguf")["w"]
    assert isinstance(weight, FORMATS[kind])
    np.testing.assert_array_equal(weight().numpy(), values)
    layer, x = Layer(weight), torch.randn(3, columns)
    compiled = compiler.compile(layer, (x,))
    truth = x.double() @ torch.from_numpy(values).double().t()
    assert (compiled(x) - truth).abs().max() < 1e-6 * truth.abs().max()
    kept = sum(a.nbytes for a in compiled.executable.constants.values())
    assert kept < 1.1 * rows * columns * (bits / 8 + 4 / 32)


def test_floats_are_tensors(tmp_path: Path) -> None:
    weight = torch.randn(4, 32)
    write_gguf(tmp_path / "w.gguf", weight, "F32")
    assert torch.equal(read_gguf(tmp_path / "w.gguf")["w"], weight)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "w.gguf", torch.randn(4, 32), "Q5_0")
    with pytest.raises(
        TilewrightError, match=r"w is Q5_0 of 2 dimensions; formats that are read: Q8_0, Q4_0, F32, F16"
    ):
        read_gguf(tmp_path / "w.gguf")
