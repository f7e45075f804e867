"""Quantized models as torchao leaves them: PyTorch 2 Export quantization and `quantize_`."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from benchmarks.networks.mobile import MobileNet
from compiler.codegen.llvm.targets import host_target
from tests.codegen.native import runnable_targets
from tests.frontend.frontend_kit import require
from tests.triton_process import NEEDS_TRITON

require("torchao")  # before the imports from it (E402)

from torchao.quantization import (  # noqa: E402
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (  # noqa: E402
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

HAS_BYTE_PRODUCTS = any(s.k == 4 for s in host_target().matrix_shapes)
"""Whether this CPU adds products of four bytes at once; others multiply pairs of widened bytes."""


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 96), nn.Linear(96, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Images(nn.Module):
    """A residual network in small: padding, a batch norm, an addition, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.third = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(32 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.pool(torch.relu(self.second(x) + x))
        return self.head(torch.flatten(torch.relu(self.third(x)), 1))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, size: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.joint, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.second_norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, size = x.shape
        joint = self.joint(self.norm(x)).view(batch, tokens, 3, self.heads, size // self.heads)
        q, k, v = joint.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, size))
        return x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))


def inverted_residuals() -> MobileNet:
    """Return MobileNetV2 with three blocks: depthwise convolutions, a clamp at 6, a mean."""
    return MobileNet(((1, 3, 16, 1, 1), (6, 3, 24, 2, 2)), nn.ReLU6, squeeze=False)


def pt2e(model: nn.Module, x: Tensor, dynamic: bool = False) -> nn.Module:
    """Calibrate `model` on a few inputs and return it with quantize and dequantize operators."""
    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = prepare_pt2e(torch.export.export(model.eval(), (x,)).module(), quantizer)
    for _ in range(3):
        prepared(torch.randn_like(x))
    prepared(x)
    return convert_pt2e(prepared)  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "perceptron": (Perceptron, (8, 64), False),
    "perceptron, dynamic": (Perceptron, (8, 64), True),
    "images": (Images, (2, 3, 16, 16), False),
    "inverted residuals": (inverted_residuals, (1, 3, 16, 16), False),
    "block": (Block, (2, 10, 64), False),
    "block, dynamic": (Block, (2, 10, 64), True),
}


def weight_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def decisions(compiled: Any) -> list[str]:
    return [f"{r.kind}: {r.message}" for r in compiled.remarks.select("integer-contraction")]


@pytest.mark.parametrize("name", MODELS)
def test_export_quantization(name: str) -> None:
    build, shape, dynamic = MODELS[name]
    model, x = build(), torch.randn(shape)
    quantized = pt2e(model, x, dynamic)
    compiled = compiler.compile(quantized, (x,))
    layers = sum(isinstance(m, (nn.Linear, nn.Conv2d)) for m in model.modules())
    assert decisions(compiled) == ["applied: runs in integers"] * layers
    want, got = quantized(x), compiled(x)
    assert (
        got - want
    ).abs().max() < 2e-3 * want.abs().max()  # PyTorch rounds sums: a code near a tie may differ by one
    assert (got - model(x)).abs().max() < 0.03 * want.abs().max()
    assert sum(a.nbytes for a in compiled.executable.constants.values()) < 1.6 * weight_count(model)


def test_export_quantization_under_torch_compile() -> None:
    x = torch.randn(8, 64)
    quantized = pt2e(Perceptron(), x)
    with torch.no_grad():
        want, got = quantized(x), torch.compile(quantized, backend="tilewright")(x)
    assert (got - want).abs().max() < 1e-6 * want.abs().max()


def test_kernels_exchange_bytes() -> None:
    """Nothing of f32 passes between the layers; where pairs are multiplied, bytes may be widened once."""
    x = torch.randn(2, 3, 16, 16)
    compiled = compiler.compile(pt2e(Images(), x), (x,))
    program = compiled.stages.scheduled
    ends = {*program.inputs, *program.outputs, *program.constants}
    pairs = set() if HAS_BYTE_PRODUCTS else {"i16"}
    assert {t.dtype.name for name, t in program.buffers.items() if name not in ends} == {"u8", *pairs}


class Coded(nn.Module):
    """A quantized model whose results are codes: their scale is a power of two, so that no division rounds."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized_decomposed.quantize_per_tensor(self.model(x), 2.0**-6, 0, -128, 127, torch.int8)  # type: ignore[no-any-return]  # operators are untyped


@pytest.fixture(scope="module")
def coded_images() -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network in int8, an image, and the codes that the network gives on this machine."""
    torch.manual_seed(0)
    x = torch.randn(1, 3, 16, 16)
    model = Coded(pt2e(Images(), x))
    codes = compiler.compile(model, (x,))(x)
    assert codes.unique().numel() > 5
    assert (codes.int() - model(x).int()).abs().max() <= 1  # PyTorch adds floats
    return model, x, codes


@pytest.mark.parametrize("target", runnable_targets())
def test_every_target_gives_the_same_codes(target: str, coded_images: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Dot products of four bytes, of two numbers of 16 bits, or none."""
    model, x, codes = coded_images
    compiled = compiler.compile(model, (x,), options={"target": target})
    assert decisions(compiled) == ["applied: runs in integers"] * 4
    assert torch.equal(compiled(x), codes)


def run_on_gpu(program: bytes, x: Tensor) -> tuple[Tensor, list[str]]:
    compiled = compiler.compile(torch.export.load(BytesIO(program)), options={"target": "sm90"})
    return compiled(x), decisions(compiled)


@NEEDS_TRITON
def test_triton_gives_the_same_codes(
    interpreter: ProcessPoolExecutor, coded_images: tuple[nn.Module, Tensor, Tensor]
) -> None:
    model, x, codes = coded_images
    program = BytesIO()
    torch.export.save(torch.export.export(model, (x,)), program)
    got, decided = interpreter.submit(run_on_gpu, program.getvalue(), x).result()
    assert decided == ["applied: runs in integers"] * 4
    assert torch.equal(got, codes)


CONFIGS: dict[str, tuple[Any, str]] = {
    "int8 weights": (Int8WeightOnlyConfig(), "missed: runs in f32: operand 0 is not quantized"),
    "int8": (Int8DynamicActivationInt8WeightConfig(), "note: runs in integers"),
    "int4 weights": (
        IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "missed: runs in f32: operand 0 is not quantized",
    ),
    "int8 by int4": (
        Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerAxis(0)),
        "applied: runs in integers",
    ),
    "int8 by int4 in groups": (
        Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
        "applied: runs in integers",
    ),
    "float8 weights": (Float8WeightOnlyConfig(), "missed: runs in f32: operand 0 is not quantized"),
}


@pytest.mark.parametrize("entry", ["compile", "torch.compile"])
@pytest.mark.parametrize("name", CONFIGS)
def test_quantize(name: str, entry: str) -> None:
    check_quantized(name, entry, torch.float32)


@pytest.mark.skipif(not HAS_BYTE_PRODUCTS, reason="needs a CPU with dot products of four bytes")
def test_groups_are_added_in_one_kernel() -> None:
    """Dot products of a group inside, the scaled sums of groups outside."""
    model, x = nn.Sequential(nn.Linear(256, 96)).eval(), torch.randn(64, 256)
    quantize_(model, CONFIGS["int8 by int4 in groups"][0])
    text = compiler.compile(model, (x,)).print_ir("scheduled")
    assert re.search(
        r"reduce add %(\w+) in 0\.\.8 [^{]*\{\s*%\w+ = reduce add %\w+ in 0\.\.\d+ [^{]*\{[^}]*dot<i32>", text
    )


@pytest.mark.parametrize("name", ["int8 weights", "int8", "float8 weights"])
def test_quantize_in_bf16(name: str) -> None:
    check_quantized(name, "compile", torch.bfloat16)


def check_quantized(name: str, entry: str, dtype: torch.dtype) -> None:
    config, decision = CONFIGS[name]
    model, x = Perceptron().eval().to(dtype), torch.randn(8, 64, dtype=dtype)
    quantize_(model, config)
    with torch.no_grad():
        want = model(x)
        if entry == "compile":
            compiled = compiler.compile(model, (x,))
            got = compiled(x)
            decided = decisions(compiled)
            assert len(decided) == 2
            assert all(decision in d.replace("bf16", "f32") for d in decided)
        else:
            got = torch.compile(model, backend="tilewright")(x)
    assert got.dtype == dtype
    assert (got - want).abs().max() <= (1e-6 if dtype == torch.float32 else 2**-6) * want.abs().max()
