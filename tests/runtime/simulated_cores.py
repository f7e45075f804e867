"""Simulation of cores that run the thread team's protocol: which thread goes on next is decided by simulated time.

Each core keeps copies of cache lines (128 bytes).  Reading a line that another core wrote, and writing one that another core
holds, moves it, which takes `TRANSFER`; moves of one line follow each other.  Times are in nanoseconds, of the order that is
measured on servers; they decide no more than how much the protocol's shared words cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.runtime.interleavings import PROTOCOL, Checker, Execution, Pointer, State, Value, parse, work_function

INSTRUCTION, TRANSFER, PAUSE, WAKE_EACH, WAKE_UP = 0.5, 60.0, 40.0, 1_500.0, 30_000.0
"""Time of an instruction, of moving a line, of a pause while spinning, of waking one thread, and until it runs."""

START = 10_000.0
"""Time of the call: workers already spin."""

COMPUTE = "  call void @compute(i64 %chunks)"
"""Each chunk computes for an equal part of the region's time."""


@dataclass
class Line:
    """State of a cache line: cores that hold a copy, and the end of its last move."""

    holders: set[int] = field(default_factory=set)
    free_at: float = 0.0


class Simulation(Checker):
    """One region of `work` nanoseconds on cores of these speeds, of which the first one calls; workers spin at first."""

    def __init__(self, speeds: Sequence[float], work: float, chunks_per_thread: int = 4) -> None:
        threads = len(speeds)
        memory: dict[Pointer, Value] = {
            ("tilewright_team", 8 * k): v for k, v in enumerate((threads, chunks_per_thread))
        }
        memory |= {("tilewright_team", 8 * k): 1 << 40 for k in range(2, 8)}
        starts: list[tuple[str, list[Value]]] = [
            ("tilewright_parallel", [("work", 0), ("data", 0), 1 << 20, threads]),
            *(("tilewright_worker", [("null", k)]) for k in range(1, threads)),
        ]
        functions = parse(PROTOCOL + work_function(COMPUTE))
        super().__init__(functions, memory, starts, {})
        self.speeds, self.work = speeds, work
        self.clock, self.computed = [START, *[0.0] * (threads - 1)], [0] * threads
        self.lines: dict[tuple[str, int], Line] = {}

    def run(self) -> float:
        """Return the time when the call returns."""
        state = self.first
        while state.threads[0]:
            ready = [k for k, frames in enumerate(state.threads) if frames and state.asleep[k] is None]
            k = min(ready, key=self.clock.__getitem__)
            before = state.asleep
            (state,) = SimulatedStep(self, state, k).run()
            for other, (then, now) in enumerate(zip(before, state.asleep, strict=True)):
                if then is not None and now is None:
                    self.clock[k] += WAKE_EACH
                    self.clock[other] = self.clock[k] + WAKE_UP
        return self.clock[0] - START

    def access(self, k: int, address: Pointer, writes: bool) -> None:
        """Let core `k` wait for the cache line of `address`."""
        line = self.lines.setdefault((address[0], address[1] // 128), Line())
        has_it = line.holders == {k} if writes else k in line.holders
        if not has_it:
            self.clock[k] = line.free_at = max(self.clock[k], line.free_at) + TRANSFER
        line.holders = {k} if writes else line.holders | {k}


class SimulatedStep(Execution):
    """One instruction of a core, which takes time."""

    checker: Simulation

    def run(self) -> Iterator[State]:
        self.checker.clock[self.k] += INSTRUCTION / self.checker.speeds[self.k]
        opcode = self.text.split()[0]
        if opcode in ("load", "store", "atomicrmw", "cmpxchg"):
            address = self.get(re.findall(r"ptr ([%@][\w.+]+)", self.text)[-1])
            if not address[0].startswith("stack"):
                self.checker.access(self.k, address, writes=opcode != "load")
        yield from super().run()

    def _call(self, rest: str) -> Iterator[State]:
        name = rest.rsplit("@", maxsplit=1)[-1].split("(", maxsplit=1)[0]
        if name == "ticks":
            yield self.proceed(int(self.checker.clock[self.k]))
            return
        if name == "compute":
            chunks = self.get(rest.rsplit(maxsplit=1)[-1].rstrip(")"))
            self.checker.clock[self.k] += self.checker.work / chunks / self.checker.speeds[self.k]
            self.checker.computed[self.k] += 1
        if name == "relax":
            self.checker.clock[self.k] += PAUSE
        yield from super()._call(rest)
