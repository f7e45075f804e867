"""Operations that straight code issues, and the cycles that the units of a core take for them.

Constants were chosen empirically, with `python -m benchmarks rank`.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from compiler.cost.machine import Machine
from compiler.ir import scalar

STORES_PER_CYCLE, SHUFFLES_PER_CYCLE = 1, 1
"""Vector stores and shuffles that begin in a cycle."""

VECTOR_UNITS = 1.5
"""Units for vector instructions of any kind, in units for multiply-adds: ports 0, 1 and 5 of Intel's cores, pipes 0 to 2 of AMD's."""

UNIT_NORM = 4
"""Exponent of the norm that joins the cycles of units: a maximum that grows where several units are busy."""

MASKED_CYCLES = 6.0
"""Cycles during which nothing else begins for a masked access, where vector registers serve as masks (measured on AMD's Zen)."""

NAN_AWARE_COST = 3
"""Instructions, in sequence, of the larger or smaller of two values that propagates NaN: compare, choose, blend."""


@dataclass(frozen=True)
class Issue:
    """Operations on vector registers, by the unit that executes them.

    `instructions` counts all that are decoded; `stalled` are cycles during which nothing else begins.
    """

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    shuffles: float = 0.0
    instructions: float = 0.0
    stalled: float = 0.0

    def __add__(self, other: Issue) -> Issue:
        return Issue(*(x + y for x, y in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Issue:
        return Issue(*(x * times for x in astuple(self)))

    def cycles(self, machine: Machine) -> float:
        """Return the cycles of the busiest unit, and more if others are about as busy."""
        units = (
            self.arithmetic / machine.fma_per_cycle,
            self.loads / machine.loads_per_cycle,
            self.stores / STORES_PER_CYCLE,
            self.shuffles / SHUFFLES_PER_CYCLE,
            self.instructions / machine.instructions_per_cycle,
            (self.arithmetic + self.shuffles) / (VECTOR_UNITS * machine.fma_per_cycle),
        )
        return float(sum(max(0.0, u) ** UNIT_NORM for u in units) ** (1 / UNIT_NORM) + self.stalled)


@dataclass(frozen=True)
class Cost:
    """Cost of statements: what runs straight through, and the cycles of the loops among them."""

    straight: Issue = Issue()  # frozen
    loop_cycles: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.straight + other.straight, self.loop_cycles + other.loop_cycles)


def operation_cost(primitive: str) -> int:
    """Return the cost of a primitive in multiply-adds."""
    return NAN_AWARE_COST if primitive in ("min", "max") else scalar.PRIMITIVES[primitive].cost


def computed(operations: float) -> Issue:
    """Return arithmetic operations."""
    return Issue(arithmetic=operations, instructions=operations)


def shuffled(operations: float) -> Issue:
    """Return shuffles of one or two registers."""
    return Issue(shuffles=operations, instructions=operations)


def accessed(operations: float, is_store: bool) -> Issue:
    """Return vector loads or stores; about half of the loads are operands of other instructions."""
    if is_store:
        return Issue(stores=operations, instructions=operations)
    return Issue(loads=operations, instructions=operations / 2)


def masked(operations: float, is_store: bool, machine: Machine) -> Issue:
    """Return masked vector loads or stores."""
    has_mask_registers = machine.has_embedded_broadcast  # both came with AVX-512
    return accessed(operations, is_store) + Issue(stalled=0 if has_mask_registers else MASKED_CYCLES * operations)
