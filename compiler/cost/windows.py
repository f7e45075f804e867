"""Seconds of reductions over windows, in one step or one dimension after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.cost.issue import operation_cost
from compiler.cost.machine import Machine


@dataclass(frozen=True)
class WindowStep:
    """A kernel that combines `taps` elements for each of its `results`."""

    results: int
    taps: int


def window_seconds(steps: Sequence[WindowStep], combine: str, bits: int, machine: Machine) -> float:
    """Return the seconds of successive kernels, each of which reads what the one before wrote.

    An element of `bits` costs a load and the primitive `combine`.
    """
    operations = sum(s.results * s.taps for s in steps) * (1 + operation_cost(combine, machine))
    exchanged = sum(machine.round_trip_seconds(s.results * bits / 8) for s in steps[:-1])
    return machine.operation_seconds(operations * bits / 32) + exchanged
