"""Errors of low precision beside PyTorch's; `pytest --bless tests/test_accuracy.py` writes their table in docs/number-formats.md."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler.frontend.model_source import as_exported_program
from compiler.report.measure import float64_reference, numerical_error
from compiler.testing import check, checks
from compiler.testing.accuracy import UNQUANTIZED, float64_references, numerical_errors
from compiler.tools.cli import main
from tests.frontend.frontend_kit import FunctionModule, require
from tests.test_number_formats import PAGE, markdown

require("torchao")  # before the imports from it (E402)

from tests.test_quantized_models import CONFIGS, Block, Images, pt2e, quantize_  # noqa: E402  # only where the extra is installed

Quantizer = Callable[[nn.Module, Tensor], tuple[nn.Module, Tensor]]

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer block": (Block, (2, 10, 64)),
    "convolutions": (Images, (2, 3, 16, 16)),
}
BF16_PRODUCTS = 'f32, `matmul_precision="bf16"`'


def rounded(dtype: torch.dtype) -> Quantizer:
    return lambda model, x: (model.to(dtype), x.to(dtype))


def with_torchao(name: str) -> Quantizer:
    def quantize(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
        quantize_(model, CONFIGS[name][0])
        return model, x

    return quantize


FORMATS: dict[str, Quantizer] = {
    "bf16": rounded(torch.bfloat16),
    "f16": rounded(torch.float16),
    BF16_PRODUCTS: lambda model, x: (model, x),
    "i8, PT2E": lambda model, x: (pt2e(model, x), x),
    "i8, dynamic": with_torchao("int8"),
    "i8 weights": with_torchao("int8 weights"),
    "i4 weights, groups of 32": with_torchao("int4 weights"),
    "f8e4m3fn weights": with_torchao("float8 weights"),
}
"""A copy of a model and its input in each format."""

ROWS = [
    (f, n) for n in NETWORKS for f in FORMATS if n == "transformer block" or ("weights" not in f and "dyn" not in f)
]


def error_cells(format_: str, network: str) -> list[str]:
    """Check a row and return its errors: ours and PyTorch's to the quantized numbers, then both to the numbers before."""
    torch.manual_seed(0)
    build, shape = NETWORKS[network]
    model, x = build().eval(), torch.randn(shape)
    quantized, given = FORMATS[format_](copy.deepcopy(model), x)
    options = {"matmul_precision": "bf16" if format_ == BF16_PRODUCTS else "f32"}
    line = check(quantized, (given,), reference=model, options=options).splitlines()[1]
    return [f"{float(cell):.0e}" for cell in line.split()[-4:]]


HEAD = ["precision", "network", "ours, own numbers", "PyTorch", "ours, unquantized", "PyTorch"]


def test_the_page_lists_errors() -> None:
    """Each row is no less accurate than PyTorch; the digits differ between CPUs and are not compared."""
    rows = [[f, n, *error_cells(f, n)] for f, n in ROWS]
    table, page = markdown(HEAD, rows), PAGE.read_text(encoding="utf-8")
    (old,) = re.findall(rf"^\| {HEAD[0]} \|.*?(?=\n\n|\n?\Z)", page, re.M | re.S)
    if checks.BLESS:
        PAGE.write_text(page.replace(old, table), encoding="utf-8")
    else:
        listed = [line.strip("| ").split(" | ")[:2] for line in old.splitlines()[2:]]
        assert listed == [row[:2] for row in rows], "to accept the new rows: pytest --bless"


class Scaled(nn.Module):
    """A linear layer whose weights are rounded to integers."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", torch.round(weight * 8).to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.codes.to(x.dtype).t() * 0.125


def scaled(dtype: torch.dtype) -> tuple[Scaled, nn.Linear, Tensor]:
    torch.manual_seed(0)
    plain = nn.Linear(32, 8, bias=False)
    return Scaled(plain.weight.detach()), plain, torch.randn(4, 32, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_errors_to_both_references(dtype: torch.dtype) -> None:
    quantized, plain, x = scaled(dtype)
    program = as_exported_program(quantized, (x,))[0]
    references = float64_references(program, (x,), {}, plain)
    exact = x.double() @ plain.weight.detach().double().t()
    torch.testing.assert_close(references[UNQUANTIZED][0], exact)
    errors = numerical_errors([exact], references)
    assert errors[UNQUANTIZED].relative < 1e-12
    assert 0.01 < errors["error"].relative < 1
    table = check(quantized, (x,), reference=plain)
    assert table.splitlines()[0].split() == ["output", "shape", "our", "error", "PyTorch", "to", "reference", "PyTorch"]


def test_a_lost_scale_is_less_accurate_than_pytorch() -> None:
    quantized, plain, x = scaled(torch.float32)
    with pytest.raises(AssertionError, match="less accurate than PyTorch"):
        checks._compare_accuracy([quantized(x) * 8], [quantized(x)], {UNQUANTIZED: [plain(x)]}, factor=4.0)


def test_comparisons_show_both_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantized, plain, x = scaled(torch.float32)
    for name, model in (("quantized", quantized), ("float", plain)):
        torch.export.save(torch.export.export(model, (x,)), tmp_path / f"{name}.pt2")
    compared = compiler.compare(quantized, (x,), reference=tmp_path / "float.pt2", seconds=0.01)
    assert compared["fused"].error.relative < 1e-6
    assert compared["PyTorch"].errors[UNQUANTIZED].relative > 0.01
    assert main(["compare", str(tmp_path / "quantized.pt2"), "--reference", str(tmp_path / "float.pt2")]) == 0
    assert UNQUANTIZED in capsys.readouterr().out


# the reference of quantized operators


def exact_of(function: Callable[..., Any], *args: Tensor) -> Tensor:
    return float64_reference(torch.export.export(FunctionModule(function), args), args)[0]


def test_rounding_to_8_bits_is_part_of_a_program() -> None:
    x = torch.linspace(-3, 3, 16)
    stored = x.to(torch.float8_e4m3fn)
    assert torch.equal(exact_of(lambda x: x.to(torch.float8_e4m3fn).float(), x), stored.double())
    assert not torch.equal(exact_of(lambda x: x.bfloat16().float(), x), x.bfloat16().double())


def test_operators_that_take_no_float64_are_exact() -> None:
    torch.manual_seed(0)
    x, codes, scales = torch.randn(3, 64), torch.randint(-8, 8, (64, 64)), torch.rand(64)
    w = codes.double() * scales.double()[:, None]
    got = exact_of(torch._weight_int8pack_mm, x, codes.to(torch.int8), scales)
    assert numerical_error([got], [x.double() @ w.t()]).relative < 1e-7
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu((codes + 8).int(), 1)
    scales_and_zeros = torch.stack((scales.expand(2, 64), torch.zeros(2, 64)), dim=2).contiguous()
    got = exact_of(
        lambda *a: torch.ops.aten._weight_int4pack_mm_for_cpu(a[0], a[1], 32, a[2]), x, packed, scales_and_zeros
    )
    assert numerical_error([got], [x.double() @ w.t()]).relative < 1e-7
    a, b = torch.randn(4, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn)
    one = torch.tensor(1.5)
    got = exact_of(lambda a, b: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16), a, b)
    assert numerical_error([got], [a.double() @ b.double().t() * 2.25]).relative < 1e-14
