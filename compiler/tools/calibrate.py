"""`tilewright calibrate`: measure the machine, and write its description."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.table import Table

from compiler.codegen.llvm.targets import host_target
from compiler.cost.host import nearest_description
from compiler.cost.machine import FIELDS, LISTED, Machine, write_machine
from compiler.report.render import table
from compiler.tools.microbenchmarks import MICROBENCHMARKS, Bench

ROUNDS = 5
"""Times that each field is measured."""

MAX_SPREAD = 0.1
"""Largest difference between rounds, relative to their median, for a measurement to count: others are noise."""


@dataclass(frozen=True)
class Measurement:
    """A field of a description: what the description said, and what each round measured."""

    field: str
    described: float
    rounds: tuple[float, ...]

    @property
    def is_reliable(self) -> bool:
        """True if the middle half of the rounds agree, as the field takes them."""
        cut = len(self.rounds) // 4
        kept = sorted(map(self.rounded, self.rounds))[cut : len(self.rounds) - cut]
        return kept[-1] - kept[0] <= MAX_SPREAD * self.value

    @property
    def value(self) -> float:
        """The median as the field takes it."""
        return self.rounded(median(self.rounds))

    def rounded(self, value: float) -> float:
        """Return a value as the field takes it: a whole number of at least one, or three digits."""
        return max(1, round(value)) if isinstance(FIELDS[self.field].default, int) else float(f"{value:.3g}")


def calibrate(bench: Bench | None = None, rounds: int = ROUNDS) -> list[Measurement]:
    """Measure every field that has a microbenchmark, in rounds over all of them."""
    target = host_target()
    machine = target.machine or Machine()
    bench = bench or Bench(target, machine)
    results = [{name: f(b) for name, f in MICROBENCHMARKS.items()} for b in (replace(bench) for _ in range(rounds))]
    return [Measurement(n, getattr(machine, n), tuple(r[n] for r in results)) for n in MICROBENCHMARKS]


def write_description(path: Path, measurements: Sequence[Measurement]) -> None:
    """Write the measured fields that are reliable, and those that the system lists, over those of a similar machine."""
    target = host_target()
    machine = target.machine or Machine()
    base = nearest_description(target.cpu, machine.vector_bits, machine.registers)
    values = {n: getattr(machine, n) for n, f in FIELDS.items() if f.metadata["origin"] == LISTED}
    values |= {m.field: m.value for m in measurements if m.is_reliable}
    header = {
        "cpu": f"{target.cpu}, {platform.system()}",
        "date": time.strftime("%Y-%m-%d"),
        "command": "tilewright calibrate",
        "note": "Fields that are not given are those of the base.",
    }
    write_machine(path, base, values, header)


def measurement_table(measurements: Sequence[Measurement]) -> Table:
    """Return a table of what was described and what was measured."""
    result = table("this machine", ["field"], ["described", "measured"], ["unit", "meaning"])
    for m in measurements:
        f = FIELDS[m.field].metadata
        measured = f"{m.value:.4g}" if m.is_reliable else f"({m.value:.4g})"
        result.add_row(m.field, f"{m.described:.4g}", measured, f["unit"], f["meaning"])
    return result
