"""Autocasting: products in bf16, wherever the context stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compiler


class Autocasting(nn.Module):
    """A module that autocasts inside."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            result: torch.Tensor = self.inner(x)
            return result


def network() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)
    return nn.Sequential(*layers).eval(), torch.randn(4, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_results_are_those_of_eager(inside: bool, captured: bool, dtype: torch.dtype) -> None:
    model, x = network()
    if inside:
        model = Autocasting(model, dtype)
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=not inside):
        expected = model(x)
        compiled = torch.compile(model, backend="tilewright") if captured else compiler.compile(model, (x,))
        result = compiled(x)
    assert result.dtype == expected.dtype == dtype
    with torch.no_grad():
        exact = (model.inner if inside else model).double()(x.double())
    error, eager_error = ((y - exact).abs().max() for y in (result, expected))
    assert error <= 2 * eager_error


def test_a_module_is_left_as_it_was() -> None:
    model, x = network()
    with torch.autocast("cpu", torch.bfloat16):
        compiler.compile(model, (x,))
    assert "forward" not in model.__dict__
    assert compiler.compile(model, (x,))(x).dtype == torch.float32
