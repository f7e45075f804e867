"""Time until the first result: `python -m benchmarks compile_time ResNet MiniLM --peers Inductor`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.networks import NETWORKS
from benchmarks.peers import prepare_peers
from compiler.report.render import table

T = TypeVar("T")


def main(arguments: BenchmarkArguments) -> None:
    """Print seconds for each network: to export, then to our first result without and with cached objects; peers start cold."""
    names = arguments.select_rows(NETWORKS)
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        first_result_seconds(nn.ReLU(), [torch.zeros(8)], arguments.peers)  # load compilers before the first row
        rows = table(
            f"seconds until the first result, {threads} thread(s)",
            ["network"],
            ["export", "ours", "ours, cached", *arguments.peers, *(f"{p} / ours" for p in arguments.peers)],
        )
        for name in names:
            seconds = first_result_seconds(*NETWORKS[name](), arguments.peers)
            print(name, *(f"{label} {s:.2f}" for label, s in seconds.items()), sep=", ", file=sys.stderr)
            rows.add_row(name, *cells(seconds, arguments.peers))
        print_table(rows)


def first_result_seconds(model: nn.Module, args: Sequence[Tensor], peers: Sequence[str]) -> dict[str, float]:
    """Return seconds by column; peers that cannot run the model are omitted."""
    seconds: dict[str, float] = {}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        seconds["export"], program = timed(lambda: torch.export.export(model, tuple(args)))
        for column in ("ours", "ours, cached"):
            build = partial(compiler.compile, program, args, options=compiler.Options(cache=folder))
            seconds[column], _ = timed(partial(build_and_call, build, args))
    return seconds | {p.name: p.first_result_seconds for p in prepare_peers(model, args, peers, cold=True)}


def build_and_call(build: Callable[[], Callable[..., object]], args: Sequence[Tensor]) -> object:
    return build()(*args)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of a call, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def cells(seconds: dict[str, float], peers: Sequence[str]) -> list[str]:
    """Format one row; peers are compared with the sum of export and compilation, as they trace the model themselves."""
    ours = seconds["export"] + seconds["ours"]
    times = [f"{seconds[w]:.2f}" if w in seconds else "-" for w in ("export", "ours", "ours, cached", *peers)]
    return times + [f"{seconds[p] / ours:.1f}" if p in seconds else "-" for p in peers]
