"""One model in ours and in every peer: who is how much faster, and how that adds up over many models."""

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
    """Seconds of one call of ours and of each peer, and of the time before the first result.

    `error` is the largest difference from eager, divided by the largest magnitude; `workspace` the bytes of our intermediates.
    """

    name: str
    our_seconds: float
    peer_seconds: Mapping[str, float]
    compile_seconds: float
    first_result_seconds: Mapping[str, float]
    error: float
    workspace_bytes: int

    def format_peer(self, peer: str) -> str:
        """Milliseconds of a peer and how many times ours that is; "-" where it did not run."""
        return (
            f"{format_milliseconds(self.peer_seconds[peer])} ({self.peer_seconds[peer] / self.our_seconds:.2f})"
            if peer in self.peer_seconds
            else "-"
        )

    @property
    def fastest_peer(self) -> tuple[str, float]:
        """The fastest peer, and how many times ours it took."""
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
    """Run `model` in ours and in `peers`; None where it does not compile.  With `cold`, nobody finds anything compiled before."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = compiler.Options(cache=folder) if cold else compiler.Options()
            start = time.perf_counter()
            ours = compiler.compile(model, tuple(args), options=options)
            compiled = time.perf_counter() - start
    except Exception as failure:  # one model that fails must not hide the others
        print(f"{name}: {type(failure).__name__}: {failure}", file=sys.stderr)
        return None
    with torch.no_grad():
        gap = numerical_error(tree_leaves(ours(*args)), tree_leaves(model(*args))).relative
    others = prepare_peers(model, args, peers, cold)
    mine, *theirs = burst_medians([partial(ours, *args), *(p.call for p in others)], rounds, burst)
    seconds = {p.name: s for p, s in zip(others, theirs, strict=True)}
    first = {p.name: p.first_result_seconds for p in others}
    found = PeerComparison(name, mine, seconds, compiled, first, gap, ours.executable.memory_plan.size)
    print(
        f"{name}: {format_milliseconds(mine)} ms"
        + (", {} took {:.2f} times".format(*found.fastest_peer) if seconds else ""),
        file=sys.stderr,
    )
    return found


def burst_medians(calls: Sequence[Callable[[], object]], rounds: int = 8, burst: float = 0.4) -> list[float]:
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


def summarize(contests: Sequence[PeerComparison]) -> str:
    """How often faster ours is than the best peer of each model: the geometric mean, and the worst."""
    against = [(*c.fastest_peer, c.name) for c in contests if c.peer_seconds]
    if not against:
        return "no peer to compare with"
    mean = statistics.geometric_mean(ratio for _, ratio, _ in against)
    peer, worst, name = min(against, key=lambda a: a[1])
    lost = sum(ratio < 1 for _, ratio, _ in against)
    return (
        f"best peer of each / ours: geometric mean {mean:.2f}, worst {worst:.2f} ({name}, {peer}); "
        f"ours is slower in {lost} of {len(against)}"
    )


def format_milliseconds(seconds: float) -> str:
    """With three digits or so."""
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"
