"""Quantization operators of PyTorch 2 Export: the integers have the bits of PyTorch's reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend_kit import FunctionModule
from torch import Tensor
from torch.ao.quantization.fx import _decomposed  # noqa: F401  (registers the operators)

import compiler
from compiler.errors import UnsupportedOpError
from compiler.options import Options

Q = torch.ops.quantized_decomposed
I8, U8 = torch.int8, torch.uint8
F8 = torch.float8_e4m3fn
NAN, INF = float("nan"), float("inf")


def activations(*shape: int) -> Tensor:
    """Return random numbers, among them ties of a scale of 1/4, and values outside the range of 8 bits."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * 20
    x.view(-1)[::3] = torch.round(x.view(-1)[::3]) * 0.25 + 0.125
    x.view(-1)[1::7] *= 100
    return x


X = activations(6, 40)
SPECIAL = torch.tensor([0.0, -0.0, INF, -INF, 1e30, -1e30, 0.125, 0.375, -0.125, -0.375])
SCALES, ZEROS = torch.rand(6) + 0.01, torch.tensor([0, 3, -4, 127, -128, 1])
GROUP_SCALES = torch.rand(6, 5) + 0.01
GROUP_ZEROS = torch.randint(-8, 8, (6, 5), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
CODES = torch.arange(-128, 112, dtype=I8).view(6, 40)
BYTES = CODES.view(U8)
ONE_DEAD = SCALES * (ZEROS != 3)
ONE_SCALE, ONE_ZERO = torch.tensor([0.25]), torch.tensor([7])

QUANTIZE: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: Q.quantize_per_tensor(x, 0.25, 3, 0, 255, U8),
    "tensor, symmetric": lambda x: Q.quantize_per_tensor(x, 0.3, 0, -127, 127, I8),
    "tensor, half": lambda x: Q.quantize_per_tensor(x.half(), 0.25, -3, -128, 127, I8),
    "tensor, bf16": lambda x: Q.quantize_per_tensor(x.bfloat16(), 0.1, 3, 0, 255, U8),
    "tensor, i16": lambda x: Q.quantize_per_tensor(x, 0.001, 30, -32768, 32767, torch.int16),
    "scale in a tensor": lambda x: Q.quantize_per_tensor(x, ONE_SCALE * 3, ONE_ZERO, 0, 255, U8),
    "scale of the data": lambda x: Q.quantize_per_tensor(x, x[:1, 0].abs() + 0.1, x[0, :1].round().long(), 0, 255, U8),
    "scale of the data, f64": lambda x: Q.quantize_per_tensor(x, x[0, 0].abs().double() + 0.1, ONE_ZERO, 0, 255, U8),
    "range in tensors": lambda x: Q.quantize_per_tensor(x, ONE_SCALE, ONE_ZERO, ONE_ZERO - 17, ONE_ZERO * 9, I8),
    "channels": lambda x: Q.quantize_per_channel(x, SCALES, ZEROS, 0, -128, 127, I8),
    "last channels": lambda x: Q.quantize_per_channel(x.t(), SCALES, ZEROS.int(), 1, -127, 127, I8),
    "channels, f64": lambda x: Q.quantize_per_channel(x, SCALES.double(), ZEROS, 0, -128, 127, I8),
    "groups": lambda x: Q.quantize_per_channel_group(x, GROUP_SCALES, GROUP_ZEROS, -8, 7, I8, 8),
    "one group": lambda x: Q.quantize_per_channel_group(x, GROUP_SCALES[:, :1], GROUP_ZEROS[:, :1] * 0, -8, 7, I8, 256),
    "tokens": lambda x: Q.quantize_per_token(x, SCALES[:, None], ZEROS[:, None] * 0, -128, 127, I8),
    "tokens, f64": lambda x: Q.quantize_per_token(x, SCALES[:, None].double(), ZEROS[:, None], -128, 127, I8),
}
DEQUANTIZE: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda q: Q.dequantize_per_tensor(q, 0.3, 5, -128, 127, I8),
    "tensor, bytes": lambda q: Q.dequantize_per_tensor(q.view(U8), 0.3, 250, 0, 255, U8),
    "tensor, bf16": lambda q: Q.dequantize_per_tensor(q, 0.3, 5, -128, 127, I8, out_dtype=torch.bfloat16),
    "scale in a tensor": lambda q: Q.dequantize_per_tensor(q, ONE_SCALE.double(), ONE_ZERO, -128, 127, I8),
    "range in tensors": lambda q: Q.dequantize_per_tensor(q, ONE_SCALE, ONE_ZERO, ONE_ZERO, ONE_ZERO, I8),
    "channels": lambda q: Q.dequantize_per_channel(q, SCALES, ZEROS, 0, -128, 127, I8),
    "channels, no zero points": lambda q: Q.dequantize_per_channel(q.t(), SCALES, None, -1, -128, 127, I8),
    "channels, f64": lambda q: Q.dequantize_per_channel(q, SCALES.double(), ZEROS, 0, -128, 127, I8),
    "channels, f16": lambda q: Q.dequantize_per_channel(q, SCALES, ZEROS, 0, -128, 127, I8, out_dtype=torch.half),
    "channels, narrow zero points": lambda q: Q.dequantize_per_channel(q, SCALES, ZEROS.to(I8), 0, -128, 127, I8),
    "groups": lambda q: Q.dequantize_per_channel_group(q, GROUP_SCALES, GROUP_ZEROS, -128, 127, I8, 8, torch.float32),
    "groups, no zero points": lambda q: Q.dequantize_per_channel_group(q, GROUP_SCALES, None, -128, 127, I8, 8, torch.half),
    "tokens": lambda q: Q.dequantize_per_token(q, SCALES[:, None], ZEROS[:, None], -128, 127, I8, torch.float32),
    "tokens, f64": lambda q: Q.dequantize_per_token(q, SCALES[:, None].double(), ZEROS[:, None], -128, 127, I8, torch.half),
}  # fmt: skip
PARAMETERS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: Q.choose_qparams(x, 0, 255, 1e-6, U8),
    "tensor, bf16": lambda x: Q.choose_qparams(x.bfloat16(), -128, 127, 1e-6, I8),
    "positive": lambda x: Q.choose_qparams(x.abs() + 1, -128, 127, 1e-6, I8),
    "tiny": lambda x: Q.choose_qparams(x * 1e-20, -128, 127, 1e-6, I8),
    "symmetric": lambda x: Q.choose_qparams_symmetric(x, -127, 127, 1e-6, I8),
    "symmetric bytes": lambda x: Q.choose_qparams_symmetric(x.half() / 100, 0, 255, 1e-6, U8),
    "tokens": lambda x: Q.choose_qparams_per_token(x, I8),
    "tokens, f16": lambda x: Q.choose_qparams_per_token((x / 100).half(), I8),
    "tokens, asymmetric": lambda x: Q.choose_qparams_per_token_asymmetric(x + 30, I8),
}


def same_bits(function: Callable[..., Any], *args: Tensor) -> None:
    """Compile `function` and compare its results with eager's bit for bit; dtypes are what PyTorch infers."""
    got, want = compiler.compile(FunctionModule(function), args)(*args), function(*args)
    for g, w in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
        torch.testing.assert_close(g, w.to(g.dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", QUANTIZE)
def test_quantize(name: str) -> None:
    same_bits(QUANTIZE[name], X)


@pytest.mark.parametrize("name", DEQUANTIZE)
def test_dequantize(name: str) -> None:
    same_bits(DEQUANTIZE[name], CODES)


@pytest.mark.parametrize("name", PARAMETERS)
def test_choose_parameters(name: str) -> None:
    same_bits(PARAMETERS[name], X)


def test_infinities_and_signed_zeros() -> None:
    same_bits(lambda x: Q.quantize_per_tensor(x, 0.25, 3, 0, 255, U8), SPECIAL)
    same_bits(lambda x: Q.quantize_per_tensor(x, 1e-30, 0, -128, 127, I8), SPECIAL)


def test_nan_has_the_code_of_eager() -> None:
    x = torch.full((40,), NAN)
    same_bits(lambda x: Q.quantize_per_tensor(x, 0.25, 3, 0, 255, U8), x)
    same_bits(lambda x: Q.quantize_per_tensor(x, 0.25, 3, -128, 127, I8), x)


FAKE: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 3, 0, 255),
    "scale in a tensor": lambda x: torch.fake_quantize_per_tensor_affine(x, ONE_SCALE, ONE_ZERO.int(), 0, 255),
    "odd scale": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.3, 0, -128, 127),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS.int(), 0, -128, 127),
    "decomposed": lambda x: Q.fake_quant_per_channel(x, SCALES, ZEROS, 0, -128, 127),
    "mask": lambda x: torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.25, 3, 0, 255),
    "mask of channels": lambda x: torch.ops.aten.fake_quantize_per_channel_affine_cachemask(x, SCALES, ZEROS.int() // 20, 0, -9, 9),
    "enabled": lambda x: torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, ONE_SCALE, ONE_ZERO.int(), torch.tensor([1]), 0, 255
    ),
    "disabled": lambda x: torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, ONE_SCALE, ONE_ZERO.int(), torch.tensor([0]), 0, 255
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAKE)
def test_fake_quantize(name: str) -> None:
    same_bits(FAKE[name], X)


def test_fake_quantize_of_special_numbers() -> None:
    same_bits(
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.25, 3, 0, 255), torch.cat([SPECIAL, torch.tensor([NAN])])
    )


def test_a_range_chosen_for_each_call() -> None:
    def dynamic(x: Tensor) -> Tensor:
        scale, zero = Q.choose_qparams(x, 0, 255, 1e-6, U8)
        return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, scale, zero, 0, 255, U8), scale, zero, 0, 255, U8)

    same_bits(dynamic, X)


def test_torch_compile() -> None:
    def both(x: Tensor) -> Tensor:
        return Q.dequantize_per_channel(
            Q.quantize_per_channel(x, SCALES, ZEROS, 0, -128, 127, I8), SCALES, ZEROS, 0, -128, 127, I8
        )

    torch.testing.assert_close(torch.compile(both, backend="tilewright")(X), both(X), rtol=0, atol=0)


BAD: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "zero": (lambda x: Q.quantize_per_tensor(x, 0.0, 3, 0, 255, U8), "the scale is 0; scales must be positive and finite"),
    "nan": (lambda x: Q.quantize_per_tensor(x, NAN, 3, 0, 255, U8), "the scale is nan"),
    "zero among channels": (lambda x: Q.quantize_per_channel(x, ONE_DEAD, ZEROS, 0, 0, 255, U8), "the scale is 0;"),
    "zero among computed": (lambda x: Q.quantize_per_channel(x, SCALES * 0, ZEROS, 0, 0, 255, U8), "the scale is 0;"),
    "nan among groups": (lambda x: Q.dequantize_per_channel_group(CODES, GROUP_SCALES * NAN, None, -8, 7, I8, 8, torch.float32) + x, "the scale is nan"),
    "zero points": (lambda x: Q.dequantize_per_channel(CODES, SCALES, ZEROS[:4], 0, -8, 7, I8) + x, r"shape \[4\] do not match 6 channels"),
    "nan among factors": (lambda x: torch._scaled_mm(x.to(F8), x.to(F8).t(), ONE_SCALE[0] * NAN, ONE_SCALE[0], out_dtype=torch.float32), "the scale is nan"),
    "infinite": (lambda x: Q.dequantize_per_tensor(x.to(I8), INF, 3, -128, 127, I8), "the scale is inf; scales must be finite"),
    "channels": (lambda x: Q.quantize_per_channel(x, SCALES[:4], ZEROS[:4], 0, -128, 127, I8), r"shape \[4\] do not match 6 channels"),
    "tokens": (lambda x: Q.quantize_per_token(x, SCALES, ZEROS, -128, 127, I8), r"shape \[6\] do not match tokens of f32\[6, 40\]"),
    "groups": (lambda x: Q.quantize_per_channel_group(x, GROUP_SCALES[:, :3], GROUP_ZEROS[:, :3], -8, 7, I8, 8), r"shape \[6, 3\] do not match 30 groups"),
    "zero points of groups": (lambda x: Q.quantize_per_channel_group(x, GROUP_SCALES, GROUP_ZEROS[:, :3], -8, 7, I8, 8), r"zero points of shape \[6, 3\] do not match 30 groups"),
    "declared dtype": (lambda x: Q.dequantize_per_channel(x.to(U8), SCALES, ZEROS, 0, 0, 255, U8) + Q.dequantize_per_tensor(x.to(I8), 1.0, 0, 0, 255, U8), "the quantized tensor is torch.int8, but torch.uint8 is declared"),
}  # fmt: skip


KNOWN_SCALES = {name for name in BAD if "among" in name}
"""Cases whose scales are tensors: `torch.compile` passes them as inputs, whose values are not known."""


@pytest.mark.parametrize("entry", ["compile", "torch.compile"])
@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_line_and_the_reason(name: str, entry: str) -> None:
    function, reason = BAD[name]

    class User(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return function(x)  # the user's line

    if entry == "compile":
        with pytest.raises(UnsupportedOpError, match=reason) as error:
            compiler.compile(User(), (X,))
        assert "test_quantization.py" in str(error.value)
    elif name not in KNOWN_SCALES:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=reason) as failed:
            torch.compile(User(), backend="tilewright", options={"fallback": "error"})(X)
        assert "test_quantization.py" in str(failed.value)


@pytest.mark.parametrize("fallback", ["error", "eager"])
def test_quantized_dtypes_are_refused(fallback: str) -> None:
    """Even as calls into PyTorch: it traces them as tensors of floats."""

    def quantized(x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).dequantize()

    with pytest.raises(
        UnsupportedOpError, match="quantized dtypes are not supported; quantize the model with torchao"
    ) as error:
        compiler.compile(FunctionModule(quantized), (X,), options=Options(fallback=fallback))
    assert "fallback=" not in str(error.value)


@pytest.mark.parametrize("entry", ["compile", "torch.compile"])
@pytest.mark.parametrize("name", ["quantized_decomposed::quantize_per_ring", "torchao::quantize_affine_twice"])
def test_an_operator_of_a_later_release_is_refused_with_its_line(name: str, entry: str) -> None:
    """Both entry points run it in PyTorch where that is allowed."""
    with torch.library._scoped_library(name.partition(":")[0], "FRAGMENT") as library:
        library.define(f"{name.rpartition(':')[2]}(Tensor x) -> Tensor")
        library.impl(name, torch.round, "CompositeExplicitAutograd")

        class User(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x * getattr(getattr(torch.ops, namespace), operator)(x)

        namespace, _, operator = name.split(":")
        operator_name = name.replace("::", ".") + ".default: has no conversion"
        with pytest.raises(Exception, match=operator_name) as error:
            run(User(), entry, "error")
        assert "return x * getattr" in str(error.value)
        assert 'Pass fallback="eager"' in str(error.value)
        with pytest.warns(UserWarning, match=operator_name):
            assert torch.equal(run(User(), entry, "eager"), X * X.round())


def run(model: torch.nn.Module, entry: str, fallback: str) -> Tensor:
    """Run a model compiled through an entry point on X."""
    if entry == "compile":
        return compiler.compile(model, (X,), options={"fallback": fallback})(X)  # type: ignore[no-any-return]  # modules return Any
    torch._dynamo.reset()
    return torch.compile(model, backend="tilewright", options={"fallback": fallback})(X)  # type: ignore[no-any-return]  # modules return Any
