"""Timeline of a call on a GPU: the device notes the time between steps, in events that nobody waits for before the end.

In Triton's interpreter the host's clock is read instead; those times say nothing about a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch

from compiler.runtime.gpu_executable import GPUExecutable
from compiler.runtime.timeline import Timeline, runs_between_marks, segment_runs

INTERPRETED_TIMES = "times of Triton's interpreter: they say nothing about a GPU"
"""Warning in a profile of kernels that Triton's interpreter runs."""


class Clock(Protocol):
    """Marks in the work of a device."""

    def mark(self) -> None:
        """Note the time at which the device gets here."""

    def seconds(self) -> list[float]:
        """Wait for the device; return the seconds of each mark after the first, and forget them."""


class EventClock:
    """Events on the current CUDA stream."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch's
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        """Return the time of each event after the first."""
        events, self._events = self._events, []
        for event in events[-1:]:
            event.synchronize()
        return [1e-3 * events[0].elapsed_time(event) for event in events]


class HostClock:
    """The host's clock, for work that is done when a launch returns."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def mark(self) -> None:
        """Read the clock."""
        self._times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the time of each mark after the first."""
        times, self._times = self._times, []
        return [t - times[0] for t in times]


class GPUTimelineRecorder:
    """Calls of a program that record their timeline: `recorder(inputs)` returns that of one call, which has no spans of threads."""

    def __init__(self, exe: GPUExecutable, clock: Clock | None = None) -> None:
        self._clock = clock or (EventClock() if exe.target.device_type == "cuda" else HostClock())
        self._segments = segment_runs(exe.program)
        self._executable = exe.with_marks(self._clock.mark)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Timeline:
        self._executable.run(inputs)
        return Timeline(tuple(runs_between_marks(self._segments, self._clock.seconds())), ())
