"""torchao's operators and PyTorch's products with quantized weights, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule, require
from test_quantization import X, activations, same_bits
from torch import Tensor

import compiler
from compiler.errors import ExportError, UnsupportedOpError
from compiler.frontend.conversions.table import conversions

require("torchao")

A = torch.ops.torchao
I8 = torch.int8
SCALE = torch.rand(6, 5) + 0.1
ZERO = torch.randint(-8, 8, (6, 5), dtype=I8)
CODES = torch.arange(-128, 112, dtype=I8).view(6, 40)
F8 = torch.float8_e4m3fn

OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "groups": lambda x: A.quantize_affine(x, [1, 8], SCALE, ZERO, I8, -8, 7),
    "rows": lambda x: A.quantize_affine(x, [1, 40], SCALE[:, 0], ZERO[:, 0], I8),
    "columns": lambda x: A.quantize_affine(x, [6, 1], SCALE.repeat(1, 8)[:1], ZERO.int().repeat(1, 8)[:1] + 20, torch.uint8),
    "tensor": lambda x: A.quantize_affine(x, [6, 40], SCALE[0, 0], ZERO[0, 0], I8, -127, 127),
    "blocks": lambda x: A.quantize_affine(x, [3, 8], SCALE[:2], ZERO[:2], I8),
    "bf16": lambda x: A.quantize_affine(x.bfloat16(), [1, 8], SCALE.bfloat16(), ZERO, I8, -8, 7),
    "back": lambda x: A.dequantize_affine(CODES, [1, 8], SCALE, ZERO, I8) + 0 * x,
    "back, no zero point": lambda x: A.dequantize_affine(CODES, [1, 40], SCALE[:, :1], None, I8) + 0 * x,
    "back in bf16": lambda x: A.dequantize_affine(
        CODES, [1, 8], SCALE.bfloat16(), ZERO, I8, -8, 7, torch.bfloat16
    ) + 0 * x.bfloat16(),
    "symmetric": lambda x: A.choose_qparams_affine(x, "SYMMETRIC", [1, 40], I8, -127, 127, 1e-5, torch.float32, I8, True),
    "no clipping": lambda x: A.choose_qparams_affine(x, "SYMMETRIC_NO_CLIPPING_ERR", [1, 8], I8, -8, 7),
    "asymmetric": lambda x: A.choose_qparams_affine(x, "ASYMMETRIC", [1, 8], torch.uint8, 0, 255, 1e-5),
    "asymmetric, bf16": lambda x: A.choose_qparams_affine(x.bfloat16(), "ASYMMETRIC", [1, 40], I8, keepdim=True),
    "whole": lambda x: A.choose_qparams_affine(x, "ASYMMETRIC", [6, 40], I8, None, None, 1e-5, torch.float64),
    "float8": lambda x: A.quantize_affine_float8_non_decomposed(x, SCALE[:, :1]),
    "float8 blocks": lambda x: A.quantize_affine_float8_non_decomposed(x, SCALE[:2], torch.float8_e5m2),
    "float8 back": lambda x: A.dequantize_affine_float8_non_decomposed(x.to(F8), SCALE[:3], torch.bfloat16),
    "integer product": lambda x: torch._int_mm(CODES.repeat(4, 1), CODES.t().contiguous().repeat(1, 4)) + x.sum().long() * 0,
    "mixed product": lambda x: torch._int_mm(CODES.view(torch.uint8), CODES.t().contiguous()) + x.sum().long() * 0,
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str) -> None:
    same_bits(OPERATORS[name], X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_int8_weights(dtype: torch.dtype) -> None:
    x, w, scales = (
        torch.randn(5, 64, dtype=dtype),
        torch.randint(-128, 128, (96, 64), dtype=I8),
        torch.rand(96, dtype=dtype),
    )
    truth = x.double() @ w.double().t() * scales.double()
    got = compiler.compile(FunctionModule(torch._weight_int8pack_mm), (x, w, scales))(x, w, scales)
    assert got.dtype == dtype
    assert (got - truth).abs().max() <= 4 * torch.finfo(dtype).eps * truth.abs().max()


class PackedInt4(torch.nn.Module):
    def __init__(self, rows: int, inner: int, group_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.codes = torch.randint(0, 16, (rows, inner), dtype=torch.int32)
        self.group_size = group_size
        self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(self.codes, 1))
        self.register_buffer("scales", torch.rand(inner // group_size, rows, 2, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, self.group_size, self.scales)


@pytest.mark.parametrize("rows", [16, 64, 96, 160])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_int4_weights(dtype: torch.dtype, rows: int) -> None:
    layer, x = PackedInt4(rows, 64, 32, dtype), torch.randn(3, 64, dtype=dtype)
    scale, zero = layer.scales.double().repeat_interleave(32, 0).unbind(2)
    truth = x.double() @ ((layer.codes.t() - 8) * scale + zero)
    got = compiler.compile(layer, (x,))(x)
    assert got.dtype == dtype
    assert (got - truth).abs().max() <= 4 * torch.finfo(dtype).eps * truth.abs().max()
    assert (got - layer(x)).abs().max() <= 8 * torch.finfo(dtype).eps * truth.abs().max()


class User(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("scale", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.scale)


def test_a_scale_of_zero_is_refused_with_its_line() -> None:
    with pytest.raises(UnsupportedOpError, match=r"the scale is 0; scales must be positive and finite") as error:
        compiler.compile(User(lambda x, s: A.quantize_affine(x, [6, 40], s, ZERO[0, 0], I8)), (X,))
    assert "test_block_quantization.py" in str(error.value)


def test_a_scale_of_packed_weights_that_is_nan_is_refused() -> None:
    layer = PackedInt4(64, 64, 32, torch.float32)
    layer.scales[1, 3, 0] = float("nan")
    with pytest.raises(UnsupportedOpError, match=r"the scale is nan; scales must be finite") as error:
        compiler.compile(layer, (torch.randn(3, 64),))
    assert "test_block_quantization.py" in str(error.value)


@pytest.mark.parametrize("entry", ["compile", "torch.compile"])
def test_packed_pairs_of_an_odd_length_are_refused(entry: str) -> None:
    """PyTorch itself refuses 7 pairs as rows of 13; `compile` adds the user's line."""
    packed = torch.zeros(6, 7, dtype=torch.uint8)

    def unpack(x: Tensor) -> Tensor:
        return x @ torch.stack((packed & 15, packed >> 4), 2).view(6, 13).to(x.dtype)

    model, x = FunctionModule(unpack), torch.randn(2, 6)
    with pytest.raises((ExportError, RuntimeError), match=r"shape '\[6, 13\]' is invalid for input of size 84"):
        compiler.compile(model, (x,)) if entry == "compile" else torch.compile(model, backend="tilewright")(x)


def test_groups_that_do_not_divide_are_refused() -> None:
    from compiler.frontend.conversions.block_quantization import quantize_affine
    from compiler.frontend.registry import ConversionError
    from compiler.ir.graph.node import input_node
    from compiler.ir.text.type_parser import parse_type

    x, s = input_node("x", parse_type("f32[6, 40]")), input_node("s", parse_type("f32[6, 3]"))
    with pytest.raises(ConversionError, match="groups of 16 do not divide a dimension of 40"):
        quantize_affine(x, [1, 16], s, None, I8)


def test_an_operator_with_another_signature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer torchao may add arguments."""
    monkeypatch.setitem(conversions(), "torchao.quantize_affine.default", lambda x, block_size: x)
    with pytest.raises(
        UnsupportedOpError, match=r"its arguments are not those that are known: .*quantize_affine\(Tensor input"
    ):
        compiler.compile(FunctionModule(OPERATORS["rows"]), (activations(6, 40),))


def test_torch_compile_takes_an_operator_apart_and_needs_no_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conversions(), "torchao.quantize_affine.default", lambda x, block_size: x)
    function = OPERATORS["rows"]
    got = torch.compile(FunctionModule(function), backend="tilewright", options={"fallback": "error"})(X)
    assert torch.equal(got, function(X))
