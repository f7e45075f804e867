"""nn.LSTM, nn.GRU and nn.RNN through both entry points, against PyTorch in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves, tree_map

import compiler
from compiler.frontend.export import import_exported, import_module, needs_decomposition
from compiler.ir.ops import recurrence
from compiler.torch_backend import tilewright
from tests.frontend.frontend_kit import interpret_imported

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


def test_a_layer_is_decomposed_alone_at_the_line_that_calls_it() -> None:
    """A pass of PyTorch over the whole program would take most of the time until the first result."""
    program = torch.export.export(nn.Sequential(nn.Linear(6, 6), nn.LSTM(6, 5)).eval(), (X,))
    assert not needs_decomposition(program)
    nodes = import_exported(program).graph.nodes
    (layer,) = (n for n in nodes if n.op is recurrence)
    assert layer.loc is not None
    assert layer.loc.module == "1"
    assert any(str(n.target) == "aten.lstm.input" for n in program.graph.nodes)  # the caller's program stays as it is


@pytest.mark.parametrize(("layer", "args"), LAYERS, ids=IDS)
def test_an_exported_layer(layer: nn.Module, args: tuple[Any, ...]) -> None:
    layer.eval()
    imported = import_module(layer, args)
    for result, want in zip(
        tree_leaves(interpret_imported(imported, args, dtype=torch.float64)), exact(layer, args), strict=True
    ):
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


TRAINED = [
    (nn.LSTM(6, 5), (X,)),
    (nn.LSTM(6, 5, num_layers=2, bidirectional=True), (X,)),
    (nn.LSTM(6, 5, num_layers=2), (X, (H, C))),
    (nn.LSTM(6, 5, bidirectional=True, batch_first=True, proj_size=3, bias=False), (WIDE, (H[:, :, :3], C))),
    (nn.LSTM(6, 5, bidirectional=True), (ONE,)),
    (nn.LSTM(6, 5, num_layers=3, dropout=0.4), (X,)),
    (nn.GRU(6, 5, bidirectional=True), (X, H)),
    (nn.GRU(6, 5, num_layers=2, bias=False), (WIDE,)),
    (nn.RNN(6, 5), (X, H[:1])),
    (nn.RNN(6, 5, nonlinearity="relu", num_layers=2, bidirectional=True), (X,)),
]


def gradients(layer: nn.Module, run: Any, args: Sequence[Any], read: slice) -> list[torch.Tensor]:
    """Of the input, the initial states and the parameters, where the results in `read` are squared and summed."""
    torch.manual_seed(1)
    layer.zero_grad()
    leaves = tree_map(lambda t: t.clone().requires_grad_(), args)
    sum(r.square().sum() for r in tree_leaves(run(*leaves))[read]).backward()  # type: ignore[attr-defined]  # a sum of tensors
    return [t.grad for t in (*tree_leaves(leaves), *layer.parameters())]


@pytest.mark.parametrize(
    ("layer", "args"), TRAINED, ids=[f"{type(m).__name__}-{k}" for k, (m, _) in enumerate(TRAINED)]
)
def test_gradients(layer: nn.Module, args: tuple[Any, ...]) -> None:
    """Of all results, of the outputs alone and of a state alone."""
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="tilewright", fullgraph=True, options={"fallback": "error"})
    exactly = copy.deepcopy(layer).double()
    for read in (slice(None), slice(1), slice(1, 2)):
        wanted = gradients(exactly, exactly, tree_map(torch.Tensor.double, args), read)
        for got, want in zip(gradients(layer, compiled, args, read), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, atol=2e-6 * max(1.0, want.abs().max().item()), rtol=1e-5)


def test_gradients_of_any_number_of_steps_and_rows() -> None:
    torch._dynamo.reset()
    layer, counter = nn.LSTM(6, 5), CompileCounterWithBackend("tilewright")
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    exactly, counts = copy.deepcopy(layer).double(), set()
    for steps, rows in ((7, 3), (4, 2), (12, 5)):
        args = (torch.randn(steps, rows, 6),)
        wanted = gradients(exactly, exactly, tree_map(torch.Tensor.double, args), slice(None))
        for got, want in zip(gradients(layer, compiled, args, slice(None)), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, atol=2e-6 * max(1.0, want.abs().max().item()), rtol=1e-5)
        counts.add(counter.frame_count)
    assert len(counts) == 1


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3), ("rnn_tanh", 1)])
def test_the_operators_by_themselves(kind: str, gates: int) -> None:
    """Outside compiled programs, their types and gradients included, as PyTorch asks of operators."""
    x, states = torch.randn(4, 3, 6), [torch.randn(3, 5)] * (1 + (kind == "lstm"))
    params = [torch.randn(gates * 5, 6), torch.randn(gates * 5, 5), torch.randn(gates * 5), torch.randn(gates * 5)]
    leaves = [t.clone().requires_grad_() for t in (x, *states, *params)]
    given = (kind, leaves[0], leaves[1:-4], leaves[-4:], True, True)
    torch.library.opcheck(torch.ops.tilewright.recurrent.default, given)
    made = torch.ops.tilewright.recurrent(*given)
    hx = [h[None] for h in states]
    rest = (True, 1, 0.0, False, False, False)
    want = getattr(torch, kind)(x.flip(0), hx if kind == "lstm" else hx[0], params, *rest)
    torch.testing.assert_close(made[0].flip(0), want[0])
    for state, last in zip(made[1:], want[1:], strict=False):
        torch.testing.assert_close(state, last[0])


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


@pytest.mark.parametrize(
    "layer", [nn.GRU(6, 5), nn.LSTM(6, 5, 2, bidirectional=True), nn.RNN(6, 5)], ids=["GRU", "LSTM", "RNN"]
)
def test_lengths_that_are_not_known(layer: nn.Module) -> None:
    """One compilation serves them all, by either way."""
    torch._dynamo.reset()
    layer.eval()
    steps = {0: torch.export.Dim("steps", min=2, max=64)}
    exported = compiler.compile(layer, (torch.randn(7, 3, 6),), dynamic_shapes=(steps,))
    compiled, served = torch.compile(layer, backend="tilewright", fullgraph=True), list[int]()
    with torch.no_grad():
        for length in (3, 11, 64):
            x = torch.randn(length, 3, 6)
            torch._dynamo.mark_dynamic(x, 0)
            assert_close(exported(x), layer, (x,))
            with torch._dynamo.config.patch(error_on_recompile=len(served) > 0):
                assert_close(compiled(x), layer, (x,))
            served.append(length)
    assert len(exported.compiled_graph.specializations) == 1
