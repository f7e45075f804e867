"""Whole models beside every peer, on one thread and on two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import compiler
from benchmarks.peers import PEERS, ready
from compiler.demo import minilm

TOKENS = 128


def cases() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """Name, model and arguments of each case."""
    model, _ = minilm()
    for batch in (1, 32):
        ids = torch.randint(0, 30000, (batch, TOKENS))
        yield f"MiniLM, batch {batch}", model, (ids, torch.ones_like(ids))


def in_bursts(calls: Sequence[Callable[[], object]], rounds: int = 8, burst: float = 0.4) -> list[float]:
    """Median seconds of each call, in turns of a short burst each.

    Some systems leave threads spinning for a while after a call, which would slow whoever comes next: a pause lets them
    fall asleep, and the first calls of a burst are not counted.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            time.sleep(0.2)
            call()
            call()
            end = time.perf_counter() + burst
            while True:
                start = time.perf_counter()
                call()
                taken.append(time.perf_counter() - start)
                if time.perf_counter() > end:
                    break
    return [statistics.median(t) for t in times]


def main() -> None:
    """Milliseconds per call and how often faster ours is."""
    for threads in (2, 1):
        torch.set_num_threads(threads)
        table = Table(title=f"whole models, {threads} thread(s): ms (times ours)")
        for column in ("model", "ours", *PEERS):
            table.add_column(column, justify="left" if column == "model" else "right")
        for name, model, args in cases():
            ours = compiler.compile(model, args)
            peers = {p.name: p.call for p in ready(model, args)}
            mine, *theirs = in_bursts([partial(ours, *args), *peers.values()])
            times = dict(zip(peers, theirs, strict=True))
            cells = [f"{times[p] * 1e3:.1f} ({times[p] / mine:.2f}x)" if p in times else "-" for p in PEERS]
            table.add_row(name, f"{mine * 1e3:.1f}", *cells)
        Console().print(table)
