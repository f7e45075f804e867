"""Models that decide what they run: `torch.cond`, `while_loop`, `scan`, `map` and `associative_scan`, exported and captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

import compiler
from compiler import Options
from compiler.report.measure import numerical_error
from compiler.torch_backend import tilewright

OPTIONS = Options(cache="")


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, lambda x: self.line(x).relu(), lambda x: x * 2 - 1, (x,))
        return found.softmax(-1)


class Nested(nn.Module):
    """Several results, one graph inside another, and a size that data decides inside it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def inner(x: Tensor) -> Tensor:
            return torch.cond(x.amax() > 1, lambda x: x - x[x > 1].sum(), lambda x: x + 1, (x,))

        found: tuple[Tensor, Tensor] = torch.cond(
            x.sum() > 0, lambda x: (inner(x), x.mean(0)), lambda x: (x * 3, x.amax(0)), (x,)
        )
        return found


class Halving(nn.Module):
    """As many steps as it takes."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        start = torch.zeros((), dtype=torch.int64)
        steps, last = while_loop(lambda n, y: y.abs().amax() > 1, lambda n, y: (n + 1, y / 2), (start, x * 8))
        return steps, last.exp()


class Decay(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = torch.tanh(state @ self.weight + row)
            return new, new * 2

        last, rows = scan(step, x[0] * 0, x)
        return last, rows


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = torch_map(lambda row: self.line(row).softmax(-1), x)
        return rows


class Running(nn.Module):
    """PyTorch spells this out with `torch.vmap`, which export hands on as it is."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def then(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return left[0] * right[0], left[1] * right[0] + right[1]

        found: tuple[Tensor, Tensor] = associative_scan(then, (x.sigmoid(), x), 0, combine_mode="generic")
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cond": Branches, "nested": Nested, "while": Halving, "scan": Decay, "map": Rows, "associative scan": Running,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def agree(compiled: Callable[..., Any], model: nn.Module, x: Tensor) -> None:
    """The same as PyTorch, against float64."""
    with torch.no_grad():
        got, expected = compiled(x), model(x)
        truth = model.double()(x.double())
        model.float()
    for mine, theirs, exact in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, expected, truth)), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert numerical_error([mine], [exact]).relative < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_exported(name: str) -> None:
    model, x = MODELS[name]().eval(), torch.randn(6, 8)
    compiled = compiler.compile(model, (x,), options=OPTIONS)
    for given in (x, -x.abs(), x.abs(), x / 100):
        agree(compiled, model, given)


@pytest.mark.parametrize("name", ["cond", "while", "scan", "map"])
def test_exported_with_open_sizes(name: str) -> None:
    model, x = MODELS[name]().eval(), torch.randn(6, 8)
    dims = ({0: Dim("n", min=2, max=64)},)
    compiled = compiler.compile(model, (x,), dynamic_shapes=dims, options=OPTIONS)
    for rows in (6, 2, 33):
        agree(compiled, model, torch.randn(rows, 8))


@pytest.mark.parametrize("name", MODELS)
def test_captured(name: str) -> None:
    model, x = MODELS[name]().eval(), torch.randn(6, 8)
    compiled = torch.compile(model, backend=tilewright, fullgraph=True, options={"cache": ""})
    for given in (x, -x.abs(), x.abs()):
        agree(compiled, model, given)


def test_only_the_graph_that_is_chosen_runs() -> None:
    """The other one would look beyond the table."""

    class Guarded(nn.Module):
        def forward(self, x: Tensor, k: Tensor) -> Tensor:
            found: Tensor = torch.cond(k.amax() < 6, lambda x, k: x[k], lambda x, k: x[k - k], (x, k))
            return found

    x = torch.randn(6, 8)
    compiled = compiler.compile(Guarded(), (x, torch.tensor([1, 2])), options=OPTIONS)
    assert torch.equal(compiled(x, torch.tensor([5, 3])), x[[5, 3]])
    assert torch.equal(compiled(x, torch.tensor([5, 99])), x[[0, 0]])


def test_a_scan_is_one_loop() -> None:
    compiled = compiler.compile(Decay().eval(), (torch.randn(6, 8),), options=OPTIONS)
    assert "repeat %" in compiled.print_ir("lowered")


def test_gradients_through_a_choice() -> None:
    model, x = Branches(), torch.randn(6, 8)
    compiled = torch.compile(model, backend=tilewright, fullgraph=True, options={"cache": ""})
    for given in (x.abs(), -x.abs()):
        found = [torch.autograd.grad(m(given).square().sum(), list(model.parameters())) for m in (compiled, model)]
        torch.testing.assert_close(*found)


class ByLength(nn.Module):
    """A predicate on sizes, and one on a size and a number that data decides."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        longer = torch.cond(x.shape[0] > 4, lambda x: x * 2, lambda x: x - 1, (x,))
        within: Tensor = torch.cond(n.item() < x.shape[0], lambda x: x.exp(), lambda x: -x, (longer,))
        return within


def test_conditions_on_sizes_are_decided_by_each_call() -> None:
    model, limit = ByLength(), torch.tensor(3)
    program = torch.export.export(model, (torch.randn(6, 3), limit), dynamic_shapes=({0: Dim("rows", max=64)}, None))
    exported = compiler.compile(program, options=OPTIONS)
    captured = torch.compile(model.forward, backend=tilewright, dynamic=True, options={"cache": ""})
    for rows in (6, 5, 4, 3):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(exported(x, limit), model(x, limit))
        torch.testing.assert_close(captured(x, limit), model(x, limit))
