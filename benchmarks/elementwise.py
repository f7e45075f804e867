"""Fused elementwise chains, softmax and layer_norm on 64 MiB with newly allocated results, against a plain copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as f

import compiler
from compiler.runtime.timing import interleaved_timings

ROWS, COLUMNS = 16384, 1024


class FunctionModule(nn.Module):
    """A function of one tensor as a module."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x)


def eight_cheap_ops(x: torch.Tensor) -> torch.Tensor:
    """Return a chain of eight cheap ops."""
    y = ((x * 1.5 + 0.25).clamp(-2.0, 2.0) * 0.75 - 0.5).clamp(min=-1.0)
    return torch.where(y > 0, y, y * 0.1)


CHAINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "x * a + b": lambda x: x * 1.5 + 0.25,
    "8 cheap ops": eight_cheap_ops,
    "gelu(x*a+b)*x": lambda x: f.gelu(x * 1.3 + 0.2) * x,
    "tanh(x*a)": lambda x: torch.tanh(x * 1.3),
    "sigmoid(x)*x": lambda x: torch.sigmoid(x) * x,
    "softmax": lambda x: f.softmax(x, dim=1),
    "layer_norm": lambda x: f.layer_norm(x, (COLUMNS,)),
}


def main() -> None:
    """Print GB/s of ours and eager, and the share of the copy rate, on one thread and on two."""
    x = torch.randn(ROWS, COLUMNS)
    target = torch.empty_like(x)
    compiled = {name: compiler.compile(FunctionModule(fn), (x,)) for name, fn in CHAINS.items()}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        table = Table(title=f"64 MiB in, 64 MiB out, {threads} thread(s)")
        for column in ("chain", "copy GB/s", "ours GB/s", "of copy", "eager GB/s", "faster"):
            table.add_column(column, justify="left" if column == "chain" else "right")
        for name, fn in CHAINS.items():
            calls = [partial(target.copy_, x), partial(compiled[name], x), partial(fn, x)]
            copy, ours, eager = (t.median for t in interleaved_timings(calls, seconds=1.0))
            copy_rate, our_rate, eager_rate = (f"{2 * x.nbytes / t / 1e9:.1f}" for t in (copy, ours, eager))
            table.add_row(name, copy_rate, our_rate, f"{copy / ours:.0%}", eager_rate, f"{eager / ours:.1f}x")
        Console().print(table)
