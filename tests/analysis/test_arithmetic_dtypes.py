"""The dtypes that kernels compute in, in words."""

from __future__ import annotations

import pytest

from compiler.analysis.arithmetic_dtypes import arithmetic_dtypes
from compiler.ir.text.tile_parser import parse_kernel


@pytest.mark.parametrize(
    ("inputs", "value", "expected"),
    [
        ("in %a: bf16x2[4], in %b: bf16x2[4]", "dot<f32>(%a[%k], %b[%k])", "bf16 x bf16, f32"),
        ("in %a: u8x4[4], in %b: i8x4[4]", "cast<f32>(dot<i32>(%a[%k], %b[%k]))", "i32"),
        ("in %a: bf16[4], in %b: bf16[4]", "cast<f32>(%a[%k]) * cast<f32>(%b[%k])", "f32"),
        ("in %a: i8[4], in %b: f32[4]", "cast<f32>(%a[%k]) * %b[%k]", "f32"),
    ],
)
def test_products(inputs: str, value: str, expected: str) -> None:
    kernel = parse_kernel(f"""kernel @k({inputs}, out %y: f32[]) {{
      %s = reduce add %k in 0..4 {{ yield {value} }}  store %s, %y[] }}""")
    assert arithmetic_dtypes(kernel) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("%a[%i]", ""), ("exp(cast<f32>(%a[%i]))", "f32"), ("cast<f32>(%a[%i] + %a[%i])", "f32"), ("cast<f32>(cast<f64>(%a[%i]) * 2.0)", "f64")],
)  # fmt: skip
def test_elementwise(value: str, expected: str) -> None:
    kernel = parse_kernel(f"""kernel @k(in %a: f16[4], out %y: {"f16" if value == "%a[%i]" else "f32"}[4]) {{
      for %i in 0..4 {{ store {value}, %y[%i] }} }}""")
    assert arithmetic_dtypes(kernel) == expected
