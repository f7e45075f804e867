"""Programs compare calls with and without the team: simulated calls, on a clock that the test sets."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import pytest

from compiler.runtime import threads
from compiler.runtime.loader import Library, link_objects
from compiler.runtime.openmp import NO_OPENMP

CLOCK = """
@now = global i64 1
@tilewright_preemptions = alias i64, ptr @preemptions
define internal i64 @ticks() { %t = load i64, ptr @now  ret i64 %t }
define internal void @relax() { ret void }
"""
"""A clock that shows what the test has set, in nanoseconds."""

EXPORTS = ["tilewright_team", "tilewright_begin_call", "tilewright_end_call", "tilewright_preemptions", "now"]


class Simulation:
    """Calls of one program by a team of two; `duration(threads)` gives the microseconds of a call and how often a worker was preempted."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.now, self.preemptions, team = (
            ctypes.c_int64.from_address(library[name]) for name in ("now", "tilewright_preemptions", "tilewright_team")
        )
        team.value = 2
        for k, parameter in enumerate(fields(threads.POLICY), 1):
            value = getattr(threads.POLICY, parameter.name)
            ticks = value if parameter.type == "int" else 1000 * value
            ctypes.c_int64.from_address(library["tilewright_team"] + 8 * k).value = int(ticks)
        self.history, self.threads = (ctypes.c_int64 * 12)(), ctypes.c_int64()
        self.begin = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(
            library["tilewright_begin_call"]
        )
        self.end = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library["tilewright_end_call"])

    def call(self, duration: Callable[[int], tuple[float, int]]) -> tuple[float, int]:
        """Return the microseconds of a call, and how often a worker was preempted; what a trial leaves at its deadline is shared."""
        if self.threads.value >= 0:
            return duration(self.threads.value)
        limit = (-self.threads.value - self.now.value) / 1000
        alone, _ = duration(1)
        shared, preempted = duration(2)
        return (alone, 0) if alone <= limit else (limit + (1 - limit / alone) * shared, preempted)

    def run(self, duration: Callable[[int], tuple[float, int]], seconds: float) -> float:
        """Make calls for `seconds` seconds of the clock; return the fraction of time in which they were shared."""
        end, shared, total = self.now.value + int(1e9 * seconds), 0, 0
        self.slowest = 0.0
        while self.now.value < end:
            start = self.begin(ctypes.addressof(self.history), ctypes.addressof(self.threads))
            took, preempted = self.call(duration)
            self.slowest = max(self.slowest, took)
            self.now.value += int(1000 * took)
            self.preemptions.value += preempted
            self.end(ctypes.addressof(self.history), start)
            total += int(took)
            shared += int(took) * (self.threads.value > 1)
        return shared / total


@pytest.fixture
def library() -> Library:
    return link_objects([threads.team_object(CLOCK, NO_OPENMP)], EXPORTS, threads.system_functions())


@pytest.fixture
def simulation(library: Library) -> Simulation:
    return Simulation(library)


def load(
    shared: float, alone: float, preempted: float, caller: float = 0, times: int = 1, seed: int = 0
) -> Callable[[int], tuple[float, int]]:
    """Calls that take so many microseconds.

    Of shared ones, a fraction `preempted` waits 3 to 4 ms for a preempted worker; of those alone, a fraction `caller` is
    preempted for 5 to 8 ms.
    """
    source = random.Random(seed)

    def duration(count: int) -> tuple[float, int]:
        noise = source.uniform(1, 1.1)
        if count == 1:
            return noise * alone + (source.random() < caller) * source.uniform(5000, 8000), 0
        waits = source.random() < preempted
        return noise * shared + waits * source.uniform(3000, 4000), waits * times

    return duration


QUIET = load(500, 900, 0)
BUSY = partial(load, 500, 900, 0.25)
MANY = partial(load, 700, 1000, 0.1, 0.1)


def test_quiet_calls_are_always_shared(simulation: Simulation) -> None:
    assert simulation.run(QUIET, 5) == 1


def test_rare_preemptions_cost_little(simulation: Simulation) -> None:
    assert simulation.run(load(500, 900, 1e-3), 10) > 0.95


def test_calls_run_alone_beside_a_process_that_takes_the_workers_cpu(simulation: Simulation) -> None:
    simulation.run(QUIET, 2)
    simulation.run(BUSY(), 2)
    assert simulation.run(BUSY(), 10) < 0.1


def test_a_trial_ends_once_preempted_calls_have_made_it_slower(simulation: Simulation) -> None:
    simulation.run(BUSY(), 5)
    before = simulation.preemptions.value
    simulation.run(BUSY(seed=1), 50)
    assert simulation.preemptions.value - before < 75


def test_and_are_shared_again_afterwards(simulation: Simulation) -> None:
    simulation.run(BUSY(), 5)
    simulation.run(QUIET, 4)
    assert simulation.run(QUIET, 5) == 1


def test_they_are_shared_where_running_alone_is_slower(library: Library) -> None:
    shares = []
    for seed in range(10):
        simulation = Simulation(library)
        simulation.run(BUSY(seed=seed), 3)
        simulation.run(MANY(seed=seed), 3)
        shares.append(simulation.run(MANY(seed=seed + 10), 5))
    assert sum(shares) / len(shares) > 0.8


def test_long_calls_are_compared_one_by_one(simulation: Simulation) -> None:
    assert simulation.run(load(4e5, 2e5, 1, times=50), 20) < 0.25


def test_calls_at_the_same_time_divide_the_team(simulation: Simulation) -> None:
    pointers = ctypes.addressof(simulation.history), ctypes.addressof(simulation.threads)
    assert simulation.begin(*pointers) > 0
    assert simulation.threads.value == 2
    assert simulation.begin(*pointers) == 0
    assert simulation.threads.value == 1


LONG = partial(load, 37e3, 66e3, 1)


def test_the_team_shares_what_a_late_trial_leaves(simulation: Simulation) -> None:
    simulation.run(LONG(), 20)
    assert simulation.slowest < 65e3


def test_pauses_between_calls_do_not_hasten_trials_alone(simulation: Simulation) -> None:
    simulation.run(LONG(), 5)
    shares = []
    for seed in range(10):
        simulation.now.value += int(2e9)
        shares.append(simulation.run(LONG(seed=seed), 0.6))
    assert sum(shares) / len(shares) > 0.975
