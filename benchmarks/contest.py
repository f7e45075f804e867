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
from benchmarks.peers import ready
from compiler.measure import error


@dataclass(frozen=True)
class Contest:
    """Seconds of one call of ours and of each peer, and of the time before the first result.

    `error` is the largest difference from eager, divided by the largest magnitude; `workspace` the bytes of our intermediates.
    """

    name: str
    ours: float
    peers: Mapping[str, float]
    compiled: float
    first: Mapping[str, float]
    error: float
    workspace: int

    def times(self, peer: str) -> str:
        """Milliseconds of a peer and how many times ours that is; "-" where it did not run."""
        return f"{milliseconds(self.peers[peer])} ({self.peers[peer] / self.ours:.2f})" if peer in self.peers else "-"

    @property
    def best(self) -> tuple[str, float]:
        """The fastest peer, and how many times ours it took."""
        name = min(self.peers, key=self.peers.__getitem__)
        return name, self.peers[name] / self.ours


def contest(
    name: str,
    model: nn.Module,
    args: Sequence[torch.Tensor],
    peers: Sequence[str],
    *,
    rounds: int = 8,
    burst: float = 0.4,
    cold: bool = False,
) -> Contest | None:
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
        gap = error(tree_leaves(ours(*args)), tree_leaves(model(*args))).relative
    others = ready(model, args, peers, cold)
    mine, *theirs = in_bursts([partial(ours, *args), *(p.call for p in others)], rounds, burst)
    seconds = {p.name: s for p, s in zip(others, theirs, strict=True)}
    first = {p.name: p.seconds for p in others}
    found = Contest(name, mine, seconds, compiled, first, gap, ours.executable.memory.size)
    print(
        f"{name}: {milliseconds(mine)} ms" + (", {} took {:.2f} times".format(*found.best) if seconds else ""),
        file=sys.stderr,
    )
    return found


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


def verdict(contests: Sequence[Contest]) -> str:
    """How often faster ours is than the best peer of each model: the geometric mean, and the worst."""
    against = [(*c.best, c.name) for c in contests if c.peers]
    if not against:
        return "no peer to compare with"
    mean = statistics.geometric_mean(ratio for _, ratio, _ in against)
    peer, worst, name = min(against, key=lambda a: a[1])
    lost = sum(ratio < 1 for _, ratio, _ in against)
    return (
        f"best peer of each / ours: geometric mean {mean:.2f}, worst {worst:.2f} ({name}, {peer}); "
        f"ours is slower in {lost} of {len(against)}"
    )


def milliseconds(seconds: float) -> str:
    """With three digits or so."""
    ms = seconds * 1e3
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"
