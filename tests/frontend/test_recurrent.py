"""nn.LSTM, nn.GRU and nn.RNN through both entry points, against PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves, tree_map

import compiler
from compiler.backend import tilewright
from compiler.frontend.export import import_module
from compiler.ir.ops import recurrence
from tests.frontend.frontend_kit import run

X, WIDE, ONE = torch.randn(7, 3, 6), torch.randn(3, 7, 6), torch.randn(1, 1, 6)
H, C = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
LAYERS = [
    (nn.LSTM(6, 5), (X,)),
    (nn.LSTM(6, 5, num_layers=2, bidirectional=True), (X,)),
    (nn.LSTM(6, 5, num_layers=2), (X, (H, C))),
    (nn.LSTM(6, 5, proj_size=3, bias=False, batch_first=True), (WIDE,)),
    (nn.LSTM(6, 5, bidirectional=True), (ONE,)),
    (nn.GRU(6, 5, bidirectional=True), (X, H)),
    (nn.GRU(6, 5, num_layers=2, dropout=0.5, batch_first=True), (WIDE,)),
    (nn.GRU(6, 5, bias=False), (X[:, 0],)),
    (nn.RNN(6, 5), (X, H[:1])),
    (nn.RNN(6, 5, nonlinearity="relu", num_layers=2, bias=False), (X,)),
]
IDS = [f"{type(layer).__name__}-{k}" for k, (layer, _) in enumerate(LAYERS)]


def exact(layer: nn.Module, args: Sequence[Any]) -> list[torch.Tensor]:
    """What the layer gives in float64."""
    with torch.no_grad():
        return tree_leaves(copy.deepcopy(layer).double()(*tree_map(torch.Tensor.double, tuple(args))))  # type: ignore[no-any-return]  # tensors


def assert_close(got: Any, layer: nn.Module, args: Sequence[Any]) -> None:
    expected = exact(layer, args)
    for result, want in zip(tree_leaves(got), expected, strict=True):
        torch.testing.assert_close(result.double(), want, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("layer", "args"), LAYERS, ids=IDS)
def test_an_exported_layer(layer: nn.Module, args: tuple[Any, ...]) -> None:
    layer.eval()
    imported = import_module(layer, args)
    for result, want in zip(tree_leaves(run(imported, args, dtype=torch.float64)), exact(layer, args), strict=True):
        torch.testing.assert_close(result, want, atol=1e-12, rtol=0)
    assert_close(compiler.compile(layer, args)(*args), layer, args)


@pytest.mark.parametrize(
    ("layer", "args"), [LAYERS[1], LAYERS[3], LAYERS[5], LAYERS[8]], ids=["LSTM", "projected", "GRU", "RNN"]
)
def test_a_layer_under_torch_compile(layer: nn.Module, args: tuple[Any, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer.eval(), backend="tilewright", fullgraph=True, options={"fallback": "error"})
    with torch.no_grad():
        assert_close(compiled(*args), layer, args)


@pytest.mark.parametrize(
    "layer",
    [nn.LSTM(6, 5, num_layers=2), nn.GRU(6, 5, bidirectional=True), nn.GRU(6, 5, num_layers=3, dropout=0.4)],
    ids=["LSTM", "GRU", "dropout"],
)
@pytest.mark.filterwarnings("ignore:.*run in PyTorch inside the compiled program")
def test_gradients_are_those_of_pytorch(layer: nn.Module) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="tilewright", fullgraph=True)
    grads = []
    for model, x in ((layer, X.clone().requires_grad_()), (compiled, X.clone().requires_grad_())):
        torch.manual_seed(1)
        layer.zero_grad()
        sum(r.square().sum() for r in tree_leaves(model(x))).backward()  # type: ignore[union-attr]  # a sum of tensors
        grads.append([x.grad, *(p.grad for p in layer.parameters())])
    for want, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_packed_sequences_stay_in_pytorch() -> None:
    torch._dynamo.reset()
    layer = nn.LSTM(6, 5, num_layers=2).eval()
    packed = pack_padded_sequence(X, torch.tensor([7, 5, 2]))
    with torch.no_grad():
        got = torch.compile(layer, backend="tilewright")(packed)[0].data
        torch.testing.assert_close(got, layer(packed)[0].data)


def test_layers_that_dynamo_may_not_trace_run_in_pytorch() -> None:
    layer = nn.GRU(6, 5).eval()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=False):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(layer, backend=tilewright)(X), layer(X), atol=0, rtol=0)
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="RNN, GRU, or LSTM"):
            torch.compile(layer, backend=tilewright, fullgraph=True)(X)


def test_the_input_is_multiplied_in_front_of_the_loop() -> None:
    graph = import_module(nn.LSTM(6, 5).eval(), (X,)).graph
    (loop,) = (n for n in graph.nodes if n.op is recurrence)
    assert loop.operands[0].op.name == "linear"
    assert loop.operands[0].shape == (7, 3, 20)
    assert loop.attrs["body"].inputs[3].shape == (4, 5, 5)  # each gate's weights, as the step reads them


@pytest.mark.parametrize(("layer", "kernels"), [(nn.LSTM(64, 64), 3), (nn.GRU(64, 64), 3), (nn.RNN(64, 64), 3)])
def test_a_step_is_one_kernel(layer: nn.Module, kernels: int) -> None:
    compiled = compiler.compile(layer.eval(), (torch.randn(50, 2, 64),))
    report = compiled.report()
    assert len(report.kernels) == kernels  # the input's product, the step, and the last states as a stack
    assert [k.launches for k in report.kernels].count(50) == 1


def test_lengths_that_are_not_known() -> None:
    torch._dynamo.reset()
    layer = nn.GRU(6, 5).eval()
    compiled = torch.compile(layer, backend="tilewright", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (3, 11):
            x = torch.randn(length, 3, 6)
            assert_close(compiled(x), layer, (x,))
