"""Overhead of one call on small tensors."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import compiler
from benchmarks.peers import PeerCall, prepare_peers
from compiler.runtime.timing import interleaved_timings


class SmallModel(nn.Module):
    """Three ops on 64 floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2.0 + 1.0)


def main() -> None:
    """Print microseconds per call of ours and every peer."""
    model, x = SmallModel().eval(), torch.randn(64)
    ours = compiler.compile(model, (x,))
    with torch.no_grad():
        peers = prepare_peers(model, (x,))
        calls = [repeat_call(lambda: ours(x)), *(repeat_call(p.call) for p in peers)]
        times = [t.median for t in interleaved_timings(calls, seconds=1.0)]
    table = Table(title="relu(x * 2 + 1) on 64 floats")
    table.add_column("system")
    table.add_column("us per call", justify="right")
    for name, seconds in zip(("ours", *(p.name for p in peers)), times, strict=True):
        table.add_row(name, f"{seconds / REPEATS * 1e6:.2f}")
    Console().print(table)


REPEATS = 200
"""Calls in one measurement, as one is too short for the clock."""


def repeat_call(call: PeerCall) -> PeerCall:
    """Return a function that calls `call` REPEATS times."""

    def repeated() -> None:
        for _ in range(REPEATS):
            call()

    return repeated
