"""Training steps, forward and backward, against eager and Inductor: `python -m benchmarks training LSTM --threads 1`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.dynamic_shapes import encoder_layer
from benchmarks.networks.resnet import resnet18
from benchmarks.peer_comparison import burst_medians, format_milliseconds
from benchmarks.peers import silenced
from compiler.report.measure import numerical_error
from compiler.report.render import table

TrainingCall = Callable[[Tensor], object]

PEERS: dict[str, Callable[[nn.Module], TrainingCall]] = {"eager": lambda model: model, "Inductor": torch.compile}
"""Peers that support training."""


def mlp() -> nn.Module:
    """Return a classifier of digits with two hidden layers."""
    return nn.Sequential(nn.Linear(784, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP, 256 rows": (mlp, (256, 784)),
    "MLP, 4096 rows": (mlp, (4096, 784)),
    "linear 768-3072, 4096 rows": (lambda: nn.Linear(768, 3072), (4096, 768)),
    "encoder layer, 8 x 128": (encoder_layer, (8, 128, 256)),
    "LSTM 128-256, batch 1": (lambda: nn.LSTM(128, 256), (512, 1, 128)),
    "LSTM 128-256, batch 8": (lambda: nn.LSTM(128, 256), (512, 8, 128)),
    "LSTM 128-256, batch 32": (lambda: nn.LSTM(128, 256), (512, 32, 128)),
    "GRU 128-256, batch 8": (lambda: nn.GRU(128, 256), (512, 8, 128)),
    "RNN 128-256, batch 8": (lambda: nn.RNN(128, 256), (512, 8, 128)),
    "ResNet-18, 64 x 64, batch 8": (resnet18, (8, 3, 64, 64)),
}
"""Models and the shapes of their inputs, which require gradients."""


def main(arguments: BenchmarkArguments) -> None:
    """Print milliseconds per step, and peers' times relative to ours."""
    names = arguments.select_rows(CASES)
    peers = [p for p in arguments.peers if p in PEERS]
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        title = f"f32 training steps, {threads} thread(s): ms (ratio to ours)"
        made = table(title, ["model"], ["ours", *peers, "error (eager's)"])
        for name in names:
            made.add_row(name, *cells(*CASES[name], peers))
        print_table(made)


def cells(build: Callable[[], nn.Module], shape: Sequence[int], peers: Sequence[str]) -> list[str]:
    """One row; errors are the largest of our gradients and of eager's, divided by the largest of each in float64."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = build().train(), torch.randn(*shape, requires_grad=True)
    compiled = torch.compile(model, backend="tilewright", options={"fallback": "error"})
    supported = [
        p for p in peers if p != "Inductor" or not isinstance(model, nn.RNNBase)
    ]  # Inductor runs them in eager
    runs = [compiled, *(PEERS[p](model) for p in supported)]
    exact = copy.deepcopy(model).double()
    expected = compute_gradients(exact, exact, x.detach().double().requires_grad_())
    errors = [numerical_error(compute_gradients(run, model, x), expected).relative for run in (compiled, model)]
    with silenced():
        steps = [partial(training_step, run, model, x) for run in runs]
        for s in steps:
            s()
        ours, *theirs = burst_medians(steps)
    times = {p: f"{format_milliseconds(t)} ({t / ours:.2f})" for p, t in zip(supported, theirs, strict=True)}
    return [format_milliseconds(ours), *(times.get(p, "-") for p in peers), "{:.0e} ({:.0e})".format(*errors)]


def training_step(run: TrainingCall, model: nn.Module, x: Tensor) -> None:
    """Run forward and backward; the loss is the mean square of the first result."""
    model.zero_grad()
    x.grad = None
    tree_leaves(run(x))[0].square().mean().backward()


def compute_gradients(run: TrainingCall, model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the gradients of the input and of every parameter after one step."""
    training_step(run, model, x)
    return [t.grad.clone() for t in (x, *model.parameters()) if t.grad is not None]
