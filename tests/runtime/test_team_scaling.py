"""Scaling of the thread team's protocol to 64 cores, and shares of cores of different speeds, in simulated time."""

from __future__ import annotations

import pytest

from tests.runtime.simulated_cores import Simulation

MILLISECOND = 1e6


@pytest.mark.parametrize(("cores", "least"), [(2, 0.99), (8, 0.97), (64, 0.7)])
def test_cores_are_used_well(cores: int, least: float) -> None:
    """A region of a millisecond: each of 64 cores computes 16 microseconds of it, and the protocol takes less than 7."""
    assert MILLISECOND / cores / Simulation([1] * cores, MILLISECOND).run() > least


@pytest.mark.parametrize("cores", [2, 8, 16])
def test_fast_cores_get_more_chunks(cores: int) -> None:
    half = cores // 2
    simulation = Simulation([1] * half + [0.5] * half, MILLISECOND)
    ideal = MILLISECOND / (1.5 * half)
    assert simulation.run() < 1.2 * ideal
    assert sum(simulation.computed[:half]) > 1.4 * sum(simulation.computed[half:])


@pytest.mark.parametrize("late", [1, 7])
def test_the_caller_does_not_need_the_others(late: int) -> None:
    """Workers that are not scheduled at all claim nothing, and the others do their parts."""
    simulation = Simulation([1] * 8, MILLISECOND)
    simulation.clock[8 - late :] = [1e9] * late
    assert simulation.run() < 1.2 * MILLISECOND / (8 - late)
    assert not any(simulation.computed[8 - late :])
