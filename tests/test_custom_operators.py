"""Operators that users register, also such that write to their arguments: called in PyTorch where that is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compiler
from compiler import Options, UnsupportedOpError
from compiler.torch_backend import tilewright

OPTIONS = Options(cache="", fallback="eager")


@torch.library.custom_op("tilewright_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tilewright_tests::add_into", mutates_args={"out"})
def add_into(x: Tensor, out: Tensor, factor: float) -> Tensor:
    out.add_(x, alpha=factor)
    return out.sum()


@add_into.register_fake
def _(x: Tensor, out: Tensor, factor: float) -> Tensor:
    return out.new_empty(())


@torch.library.custom_op("tilewright_tests::swap", mutates_args={"a", "b"})
def swap(a: Tensor, b: Tensor) -> None:
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)


class Pure(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = twice(x + 1) * y
        return found


class Writes(nn.Module):
    """To a tensor of its own, and to a part of that."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.zeros_like(x)
        whole = add_into(x, z, 2.0)
        part = add_into(y[1:], z[1:], 0.5)
        return z.exp(), whole + part


class WritesToArguments(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        swap(x, y)
        return x - 2 * y


class Counts(nn.Module):
    """To a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = add_into(x, self.seen, 1.0) * y
        return found


MODELS: tuple[type[nn.Module], ...] = (Pure, Writes, WritesToArguments, Counts)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def exported(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[..., Any]:
    return compiler.compile(model, args, options=OPTIONS)


def captured(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[..., Any]:
    return torch.compile(model, backend=tilewright, fullgraph=True)


@pytest.mark.parametrize("compiled", [exported, captured])
@pytest.mark.parametrize("model", MODELS)
def test_results_and_what_is_written(model: type[nn.Module], compiled: Callable[..., Callable[..., Any]]) -> None:
    ours, theirs, args = model(), model(), (torch.randn(4, 3), torch.randn(4, 3))
    function = compiled(ours, tuple(a.clone() for a in args))
    for _ in range(2):
        mine, other = tuple(a.clone() for a in args), tuple(a.clone() for a in args)
        torch.testing.assert_close(function(*mine), theirs(*other))
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(tuple(ours.buffers()), tuple(theirs.buffers()))


def test_what_is_not_allowed_is_named() -> None:
    with pytest.raises(UnsupportedOpError, match=r"tilewright_tests\.add_into\.default has no conversion"):
        compiler.compile(Writes(), (torch.randn(4, 3), torch.randn(4, 3)))
