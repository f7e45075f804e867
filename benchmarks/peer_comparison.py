"""Comparison of one model with every peer, and a summary over many models."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import compiler
from benchmarks.peers import prepare_peers
from compiler.report.measure import numerical_error


@dataclass(frozen=True)
class PeerComparison:
    """Seconds of one call and until the first result, of ours and of each peer.

    `error` is the largest difference from eager, divided by the largest magnitude.
    """

    name: str
    our_seconds: float
    peer_seconds: Mapping[str, float]
    compile_seconds: float
    first_result_seconds: Mapping[str, float]
    error: float
    workspace_bytes: int

    def format_peer(self, peer: str) -> str:
        """Format milliseconds of a peer and their ratio to ours, or "-" if it did not run."""
        seconds = self.peer_seconds.get(peer)
        return "-" if seconds is None else f"{format_milliseconds(seconds)} ({seconds / self.our_seconds:.2f})"

    @property
    def fastest_peer(self) -> tuple[str, float]:
        """Name of the fastest peer, and the ratio of its time to ours."""
        name = min(self.peer_seconds, key=self.peer_seconds.__getitem__)
        return name, self.peer_seconds[name] / self.our_seconds


def compare_with_peers(
    name: str,
    model: nn.Module,
    args: Sequence[torch.Tensor],
    peers: Sequence[str],
    *,
    rounds: int = 8,
    burst: float = 0.4,
    cold: bool = False,
) -> PeerComparison | None:
    """Measure `model` in ours and in `peers`, or return None if it does not compile.

    With `cold`, caches of compiled code are empty.  `rounds` and `burst` are those of `burst_medians`.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = compiler.Options(cache=folder) if cold else compiler.Options()
            start = time.perf_counter()
            ours = compiler.compile(model, tuple(args), options=options)
            compiled = time.perf_counter() - start
    except Exception as failure:  # go on with the other models
        print(f"{name}: {type(failure).__name__}: {failure}", file=sys.stderr)
        return None
    with torch.no_grad():
        error = numerical_error(tree_leaves(ours(*args)), tree_leaves(model(*args))).relative
    ready = prepare_peers(model, args, peers, cold)
    our_seconds, *seconds = burst_medians([partial(ours, *args), *(p.call for p in ready)], rounds, burst)
    peer_seconds = {p.name: s for p, s in zip(ready, seconds, strict=True)}
    first = {p.name: p.first_result_seconds for p in ready}
    workspace = ours.executable.memory_plan.size
    result = PeerComparison(name, our_seconds, peer_seconds, compiled, first, error, workspace)
    fastest = ", {} {:.2f} times that".format(*result.fastest_peer) if peer_seconds else ""
    print(f"{name}: {format_milliseconds(our_seconds)} ms{fastest}", file=sys.stderr)
    return result


def burst_medians(calls: Sequence[Callable[[], object]], rounds: int = 8, burst: float = 0.4) -> list[float]:
    """Return the median seconds of each call, measured in `rounds` turns of `burst` seconds each.

    Some systems leave threads spinning after a call, which would slow the next one: each burst starts with a pause until they
    sleep, and with two calls that do not count.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, samples in zip(calls, times, strict=True):
            time.sleep(0.2)
            call()
            call()
            end = time.perf_counter() + burst
            while True:
                start = time.perf_counter()
                call()
                samples.append(time.perf_counter() - start)
                if time.perf_counter() > end:
                    break
    return [statistics.median(t) for t in times]


def summarize(comparisons: Sequence[PeerComparison]) -> str:
    """Summarize the ratios of the fastest peer to ours: geometric mean, worst, and how often ours is slower."""
    fastest = [(*c.fastest_peer, c.name) for c in comparisons if c.peer_seconds]
    if not fastest:
        return "no peer to compare with"
    mean = statistics.geometric_mean(ratio for _, ratio, _ in fastest)
    peer, worst, name = min(fastest, key=lambda f: f[1])
    slower = sum(ratio < 1 for _, ratio, _ in fastest)
    return (
        f"fastest peer / ours: geometric mean {mean:.2f}, worst {worst:.2f} ({name}, {peer}); "
        f"ours is slower in {slower} of {len(fastest)}"
    )


def format_milliseconds(seconds: float) -> str:
    """Format milliseconds with about three digits."""
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"
