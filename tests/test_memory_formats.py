"""Results have eager's strides where PyTorch promises them, through both entry points; no argument is copied for its format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import compiler
from compiler.errors import ArgumentError
from compiler.frontend.memory_format import memory_order
from compiler.testing.checks import check_accuracy
from compiler.torch_backend import tilewright
from tests.frontend.frontend_kit import FunctionModule

OPTIONS = {"cache": ""}


class Network(nn.Module):
    """Convolution, ReLU, pooling and addition, all of which keep the memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.max_pool2d(F.relu(self.convolution(x)), 2)
        return y, y + F.avg_pool2d(y, 3, 1, 1), torch.zeros_like(x)


def export(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[..., Any]:
    return compiler.compile(model, args, options=OPTIONS)


def capture(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[..., Any]:
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(model, backend=tilewright, options={**OPTIONS, "fallback": "error"})
    return compiled


def channels_last(*shape: int) -> Tensor:
    return torch.randn(*shape).to(memory_format=torch.channels_last)


ENTRIES = pytest.mark.parametrize("entry", [export, capture])


@ENTRIES
@torch.no_grad()
def test_channels_last_is_kept(entry: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model, x = Network().eval().to(memory_format=torch.channels_last), channels_last(2, 3, 8, 6)
    found, expected = entry(model, (x,))(x), model(x)
    assert [y.stride() for y in found] == [y.stride() for y in expected]
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in found)
    check_accuracy(list(found), list(expected), list(model.double()(x.double())))


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a transposed matrix": (lambda x: (x.exp() * 2, x.T + 1), (torch.randn(5, 3).T,)),
    "a result that is a transpose": (lambda x: ((x + 1).T, x @ x.T), (torch.randn(5, 3),)),
    "two formats": (lambda x, y: (x + y, y + x), (channels_last(2, 3, 4, 5), torch.randn(2, 3, 4, 5))),
    "one value in two formats": (lambda x: (x + 1, (x + 1).contiguous()), (channels_last(2, 3, 4, 5),)),
    "contiguous on request": (lambda x: (x.contiguous(), x.sigmoid().contiguous()), (channels_last(2, 3, 4, 5),)),
    "videos": (lambda x: (F.avg_pool3d(x, 2),), (torch.randn(1, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d),)),
    "channels of one pixel": (lambda x: (x + 1,), (channels_last(2, 7, 1, 1),)),
}


@ENTRIES
@pytest.mark.parametrize("name", CASES)
def test_strides_are_those_of_eager(entry: Callable[..., Any], name: str) -> None:
    function, args = CASES[name]
    found, expected = entry(FunctionModule(function), args)(*args), function(*args)
    assert [y.stride() for y in found] == [y.stride() for y in expected]
    torch.testing.assert_close(found, expected)


@ENTRIES
def test_parts_of_larger_tensors_come_back_contiguous(entry: Callable[..., Any]) -> None:
    """Results with gaps in eager are dense here: PyTorch promises their elements only."""

    def parts(x: Tensor) -> tuple[Tensor, ...]:
        return (x + 1)[:, 1:], (x * 2)[..., ::2]

    x = channels_last(2, 3, 4, 6)
    found = entry(FunctionModule(parts), (x,))(x)
    assert all(y.is_contiguous() for y in found)
    torch.testing.assert_close(found, parts(x))


def test_a_clone_of_an_argument_is_another_tensor() -> None:
    x = channels_last(1, 3, 2, 2)
    copied = capture(FunctionModule(lambda x: x.clone()), (x,))(x)
    assert copied.data_ptr() != x.data_ptr()
    assert copied.stride() == x.stride()
    assert torch.equal(copied, x)


def test_calls_with_the_format_of_the_example_copy_nothing() -> None:
    """The call of a plain function takes the short way; arguments in other formats are copied."""
    x = channels_last(2, 3, 4, 5)
    model = compiler.compile(FunctionModule(lambda x: x.exp()), (x,), options=OPTIONS)
    assert model.call_adapter.fast_path(model.compiled_graph.run, model._call_general) is not None
    (taken,) = model.call_adapter.graph_inputs((x,), {})
    assert taken.is_contiguous()
    assert taken.data_ptr() == x.data_ptr()
    for other in (x.contiguous(), torch.randn(2, 3, 4, 10)[..., ::2]):
        y = model(other)
        torch.testing.assert_close(y, other.exp())
        assert y.stride() == x.stride()


def test_dynamic_sizes() -> None:
    model, example = Network().eval().to(memory_format=torch.channels_last), channels_last(2, 3, 8, 6)
    sizes = {"x": {0: Dim("n", min=2, max=64), 3: 2 * Dim("w", min=2, max=64)}}
    compiled = compiler.compile(model, (example,), dynamic_shapes=sizes, options=OPTIONS)
    with torch.no_grad():
        for x in (example, channels_last(5, 3, 8, 12), torch.randn(3, 3, 8, 10)):
            expected = model(x.to(memory_format=torch.channels_last))
            found = compiled(x)
            assert [y.stride() for y in found] == [y.stride() for y in expected]
            torch.testing.assert_close(found, expected)


class Running(nn.Module):
    """Writes to its argument and to a buffer, both channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 3, 2, 2).to(memory_format=torch.channels_last))
        self.total: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.cos()
        return x.mul_(2) + self.total


@ENTRIES
def test_what_is_written_keeps_its_format(entry: Callable[..., Any]) -> None:
    x, reference, model = channels_last(1, 3, 2, 2), Running(), Running()
    run = entry(model, (x.clone(),))
    mine, theirs = x.clone(), x.clone()
    y, expected = run(mine), reference(theirs)
    torch.testing.assert_close((y, mine, model.total), (expected, theirs, reference.total))
    assert (y.stride(), model.total.stride()) == (expected.stride(), reference.total.stride())


def test_an_argument_of_another_rank_is_refused() -> None:
    model = compiler.compile(FunctionModule(lambda x: x + 1), (channels_last(2, 3, 4, 5),), options=OPTIONS)
    with pytest.raises(ArgumentError, match=r"input 0 .* must be"):
        model(torch.randn(3, 4))


def test_memory_order() -> None:
    assert memory_order(torch.randn(2, 3, 4)) == (0, 1, 2)
    assert memory_order(channels_last(2, 3, 4, 5)) == (0, 2, 3, 1)
    assert memory_order(channels_last(2, 1, 4, 5)) == (0, 2, 3, 1)
    assert memory_order(torch.randn(3, 1, 5)) == (0, 1, 2)
    assert memory_order(torch.randn(4, 6)[:, ::2]) is None
    assert memory_order(torch.randn(4, 1).expand(4, 3)) is None
