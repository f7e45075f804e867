"""Programs in the ways of PyTorch's tutorials, through both entry points against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import compiler

OPTIONS = {"cache": "", "fallback": "eager"}


def test_checkpointed_dropout_draws_the_same_numbers_in_both_directions() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 4), nn.Dropout(0.2))
    x = torch.randn(3, 4)

    def model(x: Tensor) -> Tensor:
        y = checkpoint(layers, torch.dropout(x, 0.3, True), use_reentrant=False)
        return torch.dropout(y, 0.1, True) + torch.rand(4)

    def run(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        results = [function(x) for _ in range(2)]
        return [
            *results,
            *torch.autograd.grad(sum(r.square().sum() for r in results), layers.parameters()),
            torch.rand(1),
        ]

    torch.testing.assert_close(run(torch.compile(model, backend="tilewright", options=OPTIONS)), run(model))


@pytest.mark.parametrize("part", ["real", "imag"])
def test_parts_of_a_conjugate_are_compiled(part: str) -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    compiled = compiler.compile(lambda x: getattr(x.conj(), part) * 2, (x,), options={"cache": ""})
    torch.testing.assert_close(compiled(x), getattr(x.conj(), part) * 2)


def test_nested_compile_regions_are_inlined() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dropout = nn.Linear(4, 4), nn.Dropout(0.3)

        @torch.compiler.nested_compile_region
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.layer(x)
            return self.dropout(y), y

    torch.manual_seed(0)
    blocks, x = nn.ModuleList([Block(), Block()]), torch.randn(3, 4)

    def model(x: Tensor) -> Tensor:
        for block in blocks:
            x, y = block(x)
            x = x + y.exp()
        return x

    def run(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        result = function(x)
        return [result, *torch.autograd.grad(result.square().sum(), blocks.parameters()), torch.rand(1)]

    torch.testing.assert_close(run(torch.compile(model, backend="tilewright", options=OPTIONS)), run(model))
    blocks.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiler.compile(model, (x,), options=OPTIONS)(x), model(x))
