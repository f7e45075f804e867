"""reduce-precision: products of f32 in bf16, on request."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compiler
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.target import MatrixShape
from compiler.testing.checks import canonical_text, check_pass, parse_ir

SHAPES = (MatrixShape(1, 16, 2, "bf16", "bf16", "f32"),)


def test_operands_are_rounded_and_sums_are_not() -> None:
    before = parse_ir("graph(%x: f32[2, 3], %w: f32[3, 4]) { %y = matmul %x, %w  return %y }")
    after = """graph(%x: f32[2, 3], %w: f32[3, 4]) {
      %a = cast %x {dtype=bf16}  %b = cast %w {dtype=bf16}  %y = matmul %a, %b {dtype=f32}  return %y }"""
    result = run_pipeline(before, "reduce-precision", Context(matrix_shapes=SHAPES))
    assert canonical_text(result) == canonical_text(parse_ir(after))


@pytest.mark.parametrize("dtype", ["f64", "bf16", "i32"])
def test_other_dtypes_stay(dtype: str) -> None:
    text = f"graph(%x: {dtype}[2, 3], %w: {dtype}[3, 4]) {{ %y = matmul %x, %w  return %y }}"
    check_pass("reduce-precision", unchanged=text, matrix_shapes=SHAPES)


def test_a_target_without_bf16() -> None:
    check_pass(
        "reduce-precision",
        unchanged="graph(%x: f32[2, 3], %w: f32[3, 4]) { %y = matmul %x, %w  return %y }",
        remark="the target does not multiply bf16",
    )


def test_errors_are_those_of_bf16_operands() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32).eval(), torch.randn(8, 64)
    compiled = compiler.compile(layer, (x,), options={"matmul_precision": "bf16"})
    with torch.no_grad():
        rounded = x.bfloat16().double() @ layer.weight.bfloat16().double().t() + layer.bias.double()
        exact = layer.double()(x.double())
    reference = rounded if "bf16" in compiled.print_ir("fused") else exact
    assert (compiled(x) - reference).abs().max() <= 1e-5 * exact.abs().max()


def test_the_default_follows_pytorch() -> None:
    assert Options().matmul_precision == "f32"
    before = torch.get_float32_matmul_precision()
    try:
        for theirs, ours in (("medium", "bf16"), ("high", "tf32"), ("highest", "f32")):
            torch.set_float32_matmul_precision(theirs)
            assert Options().matmul_precision == ours
    finally:
        torch.set_float32_matmul_precision(before)
    with pytest.raises(ValueError, match="matmul_precision must be one of"):
        Options(matmul_precision="f16")


def test_products_of_tf32_are_those_of_f32_on_a_cpu() -> None:
    layer, x = nn.Linear(64, 32).eval(), torch.randn(8, 64)
    kernels = {
        p: compiler.compile(layer, (x,), options={"matmul_precision": p}).print_ir("scheduled") for p in ("f32", "tf32")
    }
    assert kernels["tf32"] == kernels["f32"]
