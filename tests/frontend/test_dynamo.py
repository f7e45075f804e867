"""Graphs as AOTAutograd makes them, imported and interpreted in place of compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from compiler.frontend.calling_convention import ConstantOutput, GraphOutput, SizeOutput
from compiler.frontend.decompositions import autograd_decompositions
from compiler.frontend.dynamo import FunctionalGraph, InputView, PassthroughInput, SizeCarrier, import_functional
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.verify.graph import verify_graph


def backend(seen: list[FunctionalGraph], fallback: str = "error") -> Callable[..., Any]:
    """A backend that interprets, and keeps what it imported."""

    def compile_functional(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
        imported = import_functional(module, fallback=fallback)
        verify_graph(imported.graph)
        seen.append(imported)

        def run(arguments: list[Any]) -> list[Any]:
            tensors = [source.feed(arguments) for source in imported.input_sources]
            outputs = interpret(imported.graph, [t.detach() for t in tensors])
            found: list[Any] = []
            for r in imported.results:
                match r:
                    case GraphOutput(index):
                        found.append(r.view(outputs[index]))
                    case PassthroughInput(position):
                        found.append(arguments[position])
                    case ConstantOutput(value):
                        found.append(value)
                    case InputView(position, shape, strides, offset):
                        sizes = symbols(imported, tensors)
                        place = [[evaluate(d, sizes) for d in dims] for dims in (shape, strides)]
                        found.append(arguments[position].as_strided(*place, evaluate(offset, sizes)))
                    case SizeOutput(dim):
                        found.append(evaluate(dim, symbols(imported, tensors)))
            arguments.clear()
            return found

        run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd is told
        return run

    return aot_autograd(fw_compiler=compile_functional, decompositions=autograd_decompositions())  # type: ignore[no-any-return]  # untyped in PyTorch


def symbols(imported: FunctionalGraph, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
    """The sizes of a call."""
    pairs = zip(imported.graph.inputs, tensors, strict=True)
    return bind_symbols((d, s) for node, t in pairs for d, s in zip(node.shape, t.shape, strict=True))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def train(model: nn.Module, step: Callable[..., Any], *args: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """The loss of one step and the gradients it leaves."""
    model.zero_grad()
    loss = step(*args).square().mean()
    loss.backward()
    return loss, [p.grad for p in model.parameters()]


def check_training(model: nn.Module, *args: Tensor) -> list[FunctionalGraph]:
    """Loss and gradients agree with eager."""
    seen: list[FunctionalGraph] = []
    expected = train(model, model, *args)
    torch.testing.assert_close(
        train(model, torch.compile(model, backend=backend(seen)), *args), expected, rtol=1e-4, atol=1e-5
    )
    assert len(seen) == 2  # forward and backward
    return seen


def test_inference() -> None:
    seen: list[FunctionalGraph] = []
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend(seen))(x), model(x))
    assert len(seen) == 1


def test_mutation_and_results_that_are_no_tensors() -> None:
    def program(x: Tensor, n: int) -> Any:
        y = x * n
        x.add_(1)
        return y, x.shape[0] * 2, None, x

    seen: list[FunctionalGraph] = []
    compiled = torch.compile(program, backend=backend(seen), dynamic=True)
    for shape, n in (((3, 4), 5), ((6, 4), 7)):
        a, b = torch.ones(shape), torch.ones(shape)
        torch.testing.assert_close(compiled(a, n), program(b, n))
        torch.testing.assert_close(a, b)
    assert len(seen) == 1
    assert any(isinstance(f, SizeCarrier) for f in seen[0].input_sources)


def test_training_a_perceptron_keeps_saved_arguments_as_they_are() -> None:
    seen = check_training(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4))
    assert any(isinstance(r, PassthroughInput) for r in seen[0].results)


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.causal = nn.LayerNorm(8), nn.Linear(8, 24), causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("causal", [False, True])
def test_training_attention(causal: bool) -> None:
    check_training(Attention(causal), torch.randn(2, 5, 8))


class SharedHeads(nn.Module):
    """Six heads; two of keys, and as many of values as is said."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 4 * values)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("values", [2, 6])
def test_training_attention_whose_heads_share_keys(values: int) -> None:
    model, x = SharedHeads(values), torch.randn(2, 5, 8)
    check_training(model, x)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend([]))(x), model(x))


def test_training_a_convolutional_network() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 2, dilation=2),
        nn.GroupNorm(2, 4), nn.Softmax(1), nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip
    x = torch.randn(2, 4, 18, 19)
    model(x)
    check_training(model, x)


def test_training_with_an_embedding_and_a_loss() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

        def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.head(F.gelu(self.embedding(ids))).flatten(0, 1), labels.flatten())

    check_training(Model(), torch.randint(0, 7, (2, 5)), torch.randint(0, 7, (2, 5)))


def test_random_numbers_come_from_pytorch_and_differ_each_time() -> None:
    seen: list[FunctionalGraph] = []

    def program(x: Tensor) -> Tensor:
        return x + torch.rand(8) - torch.rand(8)

    compiled = torch.compile(program, backend=backend(seen))
    first = compiled(torch.zeros(8))
    assert (first != compiled(torch.zeros(8))).all()
    assert (first != 0).all()
