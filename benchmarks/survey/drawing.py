"""Programs drawn from a seed, of sizes that take about 20 microseconds to 30 milliseconds."""

from __future__ import annotations

import random

from benchmarks.survey.fused_programs import FUSED_PROGRAMS
from benchmarks.survey.networks import NETWORKS
from benchmarks.survey.operators import OPERATORS
from benchmarks.survey.program import Builder, Family, Program
from benchmarks.survey.roofline import eager_seconds, workload
from compiler.cost.machine import Machine

KINDS: dict[str, dict[str, Family]] = {"operators": OPERATORS, "programs": FUSED_PROGRAMS, "networks": NETWORKS}
"""Families of programs by kind."""

LEAST_SECONDS, MOST_SECONDS = 10e-6, 15e-3
"""Lower bound of the time of PyTorch eager, which often takes twice that."""

DRAWING_MACHINE = Machine()
"""The same everywhere, so that a seed draws the same programs."""

MOST_ATTEMPTS = 1000
"""Draws of a program, after which its family is at fault."""

DRAW_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""What PyTorch raises for arguments that an operator does not take."""


def draw_program(seed: int, index: int, kind: str = "") -> Program:
    """Return program number `index` of `seed`; without `kind`, kinds take turns.

    Draws that PyTorch refuses, or that take too short or too long by estimate, are drawn again.
    """
    kind = kind or list(KINDS)[index % len(KINDS)]
    rng = random.Random(f"{seed} {kind} {index}")
    family = rng.choice(list(KINDS[kind]))
    refusal = "no draw was of the wanted size"
    for _ in range(MOST_ATTEMPTS):
        builder = Builder(rng)
        try:
            program = Program(seed, kind, index, family, builder.source(KINDS[kind][family](builder)))
            seconds = eager_seconds(workload(program), DRAWING_MACHINE)
        except DRAW_ERRORS as error:
            refusal = str(error)
            continue
        if LEAST_SECONDS < seconds < MOST_SECONDS:
            return program
    raise RuntimeError(f"nothing can be drawn from {family!r} of {kind}: {refusal}")
