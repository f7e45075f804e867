"""Timings: the seconds of repeated runs, and their statistics."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

NOISE_LIMIT = 0.25
"""Share by which the third quartile may exceed the fastest run on a quiet machine; chosen empirically."""


@dataclass(frozen=True)
class Timing:
    """Seconds of each of several runs."""

    seconds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        """Seconds of the fastest run."""
        return min(self.seconds, default=0.0)

    @property
    def median(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the seconds."""
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median if self.median else 0.0

    @property
    def is_noisy(self) -> bool:
        """True if other processes disturbed the runs: a quarter of them is far from the fastest."""
        return self.quartiles[1] > (1 + NOISE_LIMIT) * self.minimum

    @property
    def warning(self) -> str:
        """Warning about noisy runs; empty for others."""
        if not self.is_noisy:
            return ""
        ratio = self.quartiles[1] / self.minimum
        problem = f"the machine is noisy: a quarter of the runs takes more than {ratio:.1f} times the fastest"
        return f"{problem}; stop other processes, or compare the fastest"

    @staticmethod
    def total(timings: Iterable[Timing]) -> Timing:
        """Return the timing of several things, one after the other, in runs of all of them."""
        return Timing(tuple(map(sum, zip(*(t.seconds for t in timings), strict=True))))


def interleaved_timings(
    calls: Sequence[Callable[[], object]], seconds: float = 0.5, min_repeats: int = 5
) -> list[Timing]:
    """Time each call, in turns so that disturbances affect all calls alike.

    After two warm-up calls, each is called `min_repeats` times or more, for about `seconds` per call.
    """
    for call in calls:
        call()
        call()
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds * len(calls)
    while len(times[0]) < min_repeats or time.perf_counter() < end:
        for call, samples in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            samples.append(time.perf_counter() - start)
    return [Timing(tuple(t)) for t in times]
