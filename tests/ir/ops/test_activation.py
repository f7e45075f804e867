"""Activation functions: accurate over the whole range of their argument, and as PyTorch's where that is infinite or no number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compiler

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mish": F.mish,
    "gelu of the tanh approximation": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_error_is_a_few_roundings_of_the_result(name: str) -> None:
    """PyTorch's own loses all digits of a GELU at -5, where it adds 1 to a hyperbolic tangent near -1.

    From -4.5 on, the reference in f64 keeps enough of them.
    """
    activation, x = ACTIVATIONS[name], torch.linspace(-4.5, 60, 20001)
    expected = activation(x.double())
    error = (compiler.compile(activation, (x,))(x) - expected).abs() / expected.abs().clamp(min=1e-30)
    assert error.max() < 4e-6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_intermediate_value_overflows(name: str) -> None:
    activation, x = (
        ACTIVATIONS[name],
        torch.tensor([0.0, -0.0, 50.0, 1e4, -1e4, 1e30, torch.inf, -torch.inf, torch.nan]),
    )
    assert torch.equal(compiler.compile(activation, (x,))(x).nan_to_num(7.0), activation(x).nan_to_num(7.0))
