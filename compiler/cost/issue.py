"""Operations that straight code issues, and the cycles that the units of a core take for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.cost.machine import Machine
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, PrimitiveCall

MULTIPLYING = frozenset({"mul", "fma", "div", "rem", "sqrt", "rsqrt", "dot", "scale"})
"""Primitives that need a multiplier."""


@dataclass(frozen=True)
class Issue:
    """Operations on vector registers, by the unit that executes them.

    `additions` are arithmetic that needs no multiplier.  `instructions` counts all that are decoded; `stalled` are cycles during which nothing else begins.
    """

    arithmetic: float = 0.0
    additions: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    shuffles: float = 0.0
    instructions: float = 0.0
    stalled: float = 0.0

    # written out, as `dataclasses.astuple` copies deeply and an estimate adds many

    def __add__(self, other: Issue) -> Issue:
        return Issue(
            self.arithmetic + other.arithmetic,
            self.additions + other.additions,
            self.loads + other.loads,
            self.stores + other.stores,
            self.shuffles + other.shuffles,
            self.instructions + other.instructions,
            self.stalled + other.stalled,
        )

    def __mul__(self, times: float) -> Issue:
        return Issue(
            self.arithmetic * times,
            self.additions * times,
            self.loads * times,
            self.stores * times,
            self.shuffles * times,
            self.instructions * times,
            self.stalled * times,
        )

    def cycles(self, machine: Machine) -> float:
        """Return the cycles of the busiest unit, and more if others are about as busy, with two threads on a core."""
        return self._cycles(machine, machine.instructions_per_cycle, machine.unit_overlap)

    def cycles_alone(self, machine: Machine) -> float:
        """Return the same with the core to one thread."""
        return self._cycles(machine, machine.issue_width, machine.unit_overlap_alone)

    def _cycles(self, machine: Machine, width: int, norm: int) -> float:
        """Return the cycles on a core that begins `width` instructions in a cycle, by the `norm` of those of each unit."""
        arithmetic = self.arithmetic + self.additions
        units = (
            (self.arithmetic if machine.adds_beside_products else arithmetic) / machine.fma_per_cycle,
            self.additions / machine.fma_per_cycle if machine.adds_beside_products else 0.0,
            self.loads / machine.loads_per_cycle,
            self.stores / machine.stores_per_cycle,
            self.shuffles / machine.shuffles_per_cycle,
            self.instructions / width,
            (arithmetic + self.shuffles) / (machine.vector_unit_ratio * machine.fma_per_cycle),
        )
        return float(sum(max(0.0, u) ** norm for u in units) ** (1 / norm) + self.stalled)


@dataclass(frozen=True)
class Cost:
    """Cost of statements: what runs straight through, and the cycles of the loops among them."""

    straight: Issue = Issue()  # frozen
    loop_cycles: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.straight + other.straight, self.loop_cycles + other.loop_cycles)


def operation_cost(primitive: str, machine: Machine) -> int:
    """Return the cost of a primitive in multiply-adds."""
    return machine.nan_aware_ops if primitive in ("min", "max") else scalar.PRIMITIVES[primitive].cost


def computed(operations: float) -> Issue:
    """Return the issue of this many arithmetic operations."""
    return Issue(arithmetic=operations, instructions=operations)


def called(primitive: str, operations: float) -> Issue:
    """Return the issue of so many operations of a primitive."""
    if primitive in MULTIPLYING:
        return computed(operations)
    return Issue(additions=operations, instructions=operations)


def shuffled(operations: float) -> Issue:
    """Return the issue of this many shuffles, each of one or two registers."""
    return Issue(shuffles=operations, instructions=operations)


def converted(operations: float, machine: Machine) -> Issue:
    """Return the issue of conversions or integer arithmetic, in the units for shuffles if those execute them beside multiply-adds."""
    return shuffled(operations) if machine.converts_beside_products else computed(operations)


def recomputed(parts: Iterable[Expr], vectors: float, machine: Machine) -> Issue:
    """Return the issue of loading and computing so many vectors of an operand, whose expressions are `parts`."""
    floats, others, loads = 0, 0, 0  # multiplications and divisions of floats, and other arithmetic
    for e in parts:
        loads += isinstance(e, Load)
        if isinstance(e, PrimitiveCall):
            cost = operation_cost(e.primitive, machine)
            if e.dtype.is_float and e.primitive not in ("cast", "bitcast"):
                floats += cost
            else:
                others += cost
    return computed(vectors * floats) + converted(vectors * others, machine) + accessed(vectors * loads, False)


def accessed(operations: float, is_store: bool) -> Issue:
    """Return the issue of vector loads or stores; about half of the loads are operands of other instructions."""
    if is_store:
        return Issue(stores=operations, instructions=operations)
    return Issue(loads=operations, instructions=operations / 2)


def masked(operations: float, is_store: bool, machine: Machine) -> Issue:
    """Return the issue of masked vector loads or stores, for which a machine without mask registers stalls."""
    stalled = 0 if machine.has_mask_registers else machine.masked_access_cycles * operations
    return accessed(operations, is_store) + Issue(stalled=stalled)
