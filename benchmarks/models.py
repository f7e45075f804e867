"""Whole networks of batch size 1 against every peer: `python -m benchmarks models ResNet GPT-2 --peers OpenVINO --threads 1`."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.networks import NETWORKS
from benchmarks.peer_comparison import PeerComparison, compare_with_peers, format_milliseconds, summarize
from compiler.report.render import format_bytes, table

COMPILING_PEERS = ("Inductor", "Inductor tuned")
"""Peers whose time until the first result has a column."""


def main(arguments: BenchmarkArguments) -> None:
    """Print milliseconds per call, peers' times relative to ours, and seconds until the first result."""
    names = arguments.select_rows(NETWORKS)
    compare_with_peers("warm-up", nn.ReLU(), [torch.zeros(8)], arguments.peers, rounds=1)  # loads compilers
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        results = {name: compare_with_peers(name, *NETWORKS[name](), arguments.peers, cold=True) for name in names}
        compiling = [p for p in arguments.peers if p in COMPILING_PEERS]
        made = table(
            f"f32 networks, batch 1, {threads} thread(s): ms (ratio to ours); s until the first result",
            ["network"],
            ["ours", *arguments.peers, "ours, s", *(f"{p}, s" for p in compiling), "workspace", "error"],
        )
        for name, result in results.items():
            made.add_row(name, *(cells(result, arguments.peers, compiling) if result else ["failed"]))
        print_table(made, summarize([r for r in results.values() if r]))


def cells(result: PeerComparison, peers: tuple[str, ...], compiling: list[str]) -> list[str]:
    """Format one row."""
    waits = [f"{result.first_result_seconds[p]:.1f}" if p in result.first_result_seconds else "-" for p in compiling]
    last = [f"{result.compile_seconds:.1f}", *waits, format_bytes(result.workspace_bytes), f"{result.error:.0e}"]
    return [format_milliseconds(result.our_seconds), *map(result.format_peer, peers), *last]
