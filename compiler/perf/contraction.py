"""How long a register-blocked contraction takes, by counting what each step of the inner loop issues.

A block of `rows` x `registers` accumulators does rows * registers multiply-adds per step, for which it loads `registers` vectors and
broadcasts `rows` scalars.  The step takes as long as the slowest of: multiply-adds issued, loads issued, and the latency of
one multiply-add (each accumulator waits for its last value).  See Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008, and Low et al., "Analytical Modeling Is Enough for High-Performance BLIS", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.perf.machine import Machine


@dataclass(frozen=True)
class RegisterTile:
    """Rows times vector registers of accumulators."""

    rows: int
    registers: int


LOOP_OVERHEAD = 0.5
"""Cycles per step for counting and for loads that do not quite overlap."""

PARTIAL_PENALTY = 0.03
"""Share of the time by which each kind of partial block must pay, for the code it adds."""


def step_cycles(rows: int, registers: int, machine: Machine) -> float:
    """Cycles for one step of the reduced loop."""
    fma = rows * registers / machine.fma_per_cycle
    loads = (rows + registers) / machine.loads_per_cycle
    return max(fma, loads, machine.fma_latency) + LOOP_OVERHEAD


def total_cycles(rows: int, columns: int, lanes: int, block: RegisterTile, machine: Machine) -> float:
    """Cycles per step of the reduced loop over the whole rows x columns result, partial blocks included."""
    full_r, part_r = divmod(rows, block.rows)
    vectors = -(-columns // lanes)
    full_c, part_c = divmod(vectors, block.registers)
    total = 0.0
    for r, times_r in ((block.rows, full_r), (part_r, 1 if part_r else 0)):
        for c, times_c in ((block.registers, full_c), (part_c, 1 if part_c else 0)):
            if times_r and times_c:
                total += times_r * times_c * step_cycles(r, c, machine)
    return total * (1 + PARTIAL_PENALTY * (bool(part_r and full_r) + bool(part_c and full_c)))


def best_tiles(rows: int, shapes: Sequence[tuple[int, int, int]], machine: Machine) -> list[RegisterTile]:
    """Blocks of equal height for contractions that share their rows; each shape is (columns, lanes, products added).

    Of the heights whose accumulators, one row of vectors and a broadcast fit the registers, the one that takes the least
    time in all; ties go to the blocks that load least, then to the lowest.
    """
    best: tuple[tuple[float, float, int], list[RegisterTile]] | None = None
    for height in range(1, min(rows, machine.registers) + 1):
        chosen, time, loads = [], 0.0, 0.0
        for columns, lanes, products in shapes:
            block = best_width(rows, height, columns, lanes, machine)
            if block is None:
                break
            chosen.append(block)
            time += total_cycles(rows, columns, lanes, block, machine) * products / (rows * columns)
            loads += (height + block.registers) / (height * block.registers)
        rank = (round(time, 3), loads, height)
        if len(chosen) == len(shapes) and (best is None or rank < best[0]):
            best = (rank, chosen)
    return best[1] if best else [RegisterTile(1, 1) for _ in shapes]


def best_width(rows: int, height: int, columns: int, lanes: int, machine: Machine) -> RegisterTile | None:
    """The width that suits blocks of `height` rows; None where not even one vector fits."""
    widest = min(-(-columns // lanes), 6, (machine.registers - 2) // (height + 1))
    blocks = [RegisterTile(height, c) for c in range(1, widest + 1)]
    return min(blocks, key=lambda b: (round(total_cycles(rows, columns, lanes, b, machine), 3), -b.registers), default=None)
