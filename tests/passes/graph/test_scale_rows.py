"""scale-rows: a power of two multiplies a few rows instead of the constants that they are multiplied by."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from compiler.testing.checks import check_pass

PASS = "scale-rows{min-bytes=0}"


def graph(rows: int = 2, factor: float = 2.0**120, x: str = "f32") -> str:
    return f"""graph(%x: {x}[{rows}, 2]) {{
      %w = constant f32[2, 3] [[1e-36, 2e-36, 3e-36], [4e-36, 5e-36, 6e-36]]  %s = mul %w, {factor!r}
      %y = matmul %x, %s  return %y }}"""


WINDOWS = f"""graph(%x: f32[1, 1, 1, 4]) {{
  %w = constant f32[1, 1, 1, 2] [[[[1e-36, 2e-36]]]]  %s = mul %w, {2.0**120!r}
  %y = conv %x, %s {{stride=[1, 1], dilation=[1, 1], groups=1}}  return %y }}"""
"""An infinite pixel concerns the windows that it is in."""


def test_rows_are_multiplied_instead_of_constants() -> None:
    check_pass(
        PASS,
        before=graph(),
        after=f"""graph(%x: f32[2, 2]) {{
          %w = constant f32[2, 3] [[1e-36, 2e-36, 3e-36], [4e-36, 5e-36, 6e-36]]
          %a = abs %x  %l = amax %a {{dims=[1], keepdim=true}}  %m = maximum %l, {2.0**-126!r}
          %b = bitcast %m {{dtype=i32}}  %e = and %b, 2139095040  %p = bitcast %e {{dtype=f32}}
          %d = div %x, %p  %r = mul %d, {2.0**60!r}  %z = matmul %r, %w  %t = mul %z, {2.0**60!r}  %y = mul %t, %p
          return %y }}""",
        remark="rows are scaled, not constants",
    )


@pytest.mark.parametrize(
    "text",
    [graph(rows=5), graph(factor=3.0 * 2.0**120), graph(factor=2.0**60), WINDOWS],
    ids=["many rows", "no power of two", "small factors", "windows"],
)
def test_what_stays(text: str) -> None:
    check_pass(PASS, unchanged=text)


def test_small_constants_stay() -> None:
    check_pass("scale-rows", unchanged=graph())


class Linear8(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", (torch.randn(96, 512) * torch.logspace(-4, 2, 512)).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("size", [1e-38, 1e-20, 1.0, 1e30])
def test_rows_of_any_size_keep_their_accuracy(dtype: torch.dtype, size: float) -> None:
    torch.manual_seed(0)
    model, x = Linear8(dtype).eval(), torch.randn(3, 512) * size
    compiled = compiler.compile(model, (x,))
    assert "rows are scaled" in "\n".join(map(str, compiled.remarks))
    exact = x.double() @ model.weight.double().T
    error = (compiled(x).double() - exact).abs().amax() / exact.abs().amax()
    assert error < 1e-6


def test_rows_that_are_not_finite_have_no_finite_results() -> None:
    model, x = Linear8(torch.float8_e4m3fn).eval(), torch.ones(3, 512)
    x[0, 3], x[1, 4] = np.inf, np.nan
    y = compiler.compile(model, (x,))(x)
    assert not y[:2].isfinite().any()
    assert y[2].isfinite().all()
