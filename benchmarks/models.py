"""Whole networks, batch 1, beside every peer: `python -m benchmarks models ResNet GPT-2 --peers OpenVINO --threads 1`."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.contest import Contest, contest, milliseconds, verdict
from benchmarks.networks import NETWORKS
from benchmarks.request import Request, show
from compiler.render import size, table

COMPILED = ("Inductor", "Inductor tuned")
"""The peers whose first call is a wait worth a column."""


def main(asked: Request) -> None:
    """Milliseconds per call, times of peers relative to ours, and seconds until the first result."""
    names = asked.chosen(NETWORKS)
    contest("warm-up", nn.ReLU(), [torch.zeros(8)], asked.peers, rounds=1)  # compilers load here, not in the first row
    for threads in asked.threads:
        torch.set_num_threads(threads)
        results = {name: contest(name, *NETWORKS[name](), asked.peers, cold=True) for name in names}
        first = [p for p in asked.peers if p in COMPILED]
        made = table(
            f"f32 networks, batch 1, {threads} thread(s): ms (times ours); s until the first result",
            ["network"],
            ["ours", *asked.peers, "ours, s", *(f"{p}, s" for p in first), "workspace", "error"],
        )
        for name, result in results.items():
            made.add_row(name, *(cells(result, asked.peers, first) if result else ["failed"]))
        show(made, verdict([r for r in results.values() if r]))


def cells(result: Contest, peers: tuple[str, ...], first: list[str]) -> list[str]:
    """One row."""
    waits = [f"{result.first[p]:.1f}" if p in result.first else "-" for p in first]
    rest = [f"{result.compiled:.1f}", *waits, size(result.workspace), f"{result.error:.0e}"]
    return [milliseconds(result.ours), *map(result.times, peers), *rest]
