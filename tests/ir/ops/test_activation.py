"""Activation functions: accurate over the whole range of their argument, and as PyTorch's where that is infinite or no number."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import compiler


def test_error_of_mish_is_a_few_roundings_of_the_result() -> None:
    x = torch.linspace(-60, 60, 20001)
    expected = F.mish(x.double())
    error = (compiler.compile(F.mish, (x,))(x) - expected).abs() / expected.abs().clamp(min=1e-30)
    assert error.max() < 1e-6


def test_no_intermediate_value_of_mish_overflows() -> None:
    x = torch.tensor([0.0, -0.0, 50.0, 1e4, -1e4, 1e30, torch.inf, -torch.inf, torch.nan])
    assert torch.equal(compiler.compile(F.mish, (x,))(x).nan_to_num(7.0), F.mish(x).nan_to_num(7.0))
