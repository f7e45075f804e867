"""Low precision against peers: `python -m benchmarks low_precision products i8 --peers eager --threads 1`.

Sections are products (against the multiply-add peak of their operands), vectors and decoders (against the rate of reading weights)
and models (against ours in f32).  Every result is compared with float64 arithmetic on the same quantized numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from rich.table import Table

from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.low_precision.case import OURS, Case, Outcome, measure
from benchmarks.low_precision.decoders import decoders
from benchmarks.low_precision.models import models
from benchmarks.low_precision.products import products
from benchmarks.low_precision.vectors import vectors
from benchmarks.peak import MULTIPLY_ADDS, multiply_add_peak, read_rate
from compiler.report.render import table

Cases = Mapping[str, Callable[[], Case]]
Limits = Mapping[str, float]

SECTIONS: dict[str, Callable[[], Cases]] = {
    "products": products,
    "vectors": vectors,
    "models": models,
    "decoders": decoders,
}


def main(arguments: BenchmarkArguments) -> None:
    """Print the machine's limits and, for each section, milliseconds, ratios to ours and errors."""
    names = arguments.select_rows(f"{section} {row}" for section, cases in SECTIONS.items() for row in cases())
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        before, outcomes = measure_limits(threads), {}
        for section, cases in SECTIONS.items():
            rows = {row: make for row, make in cases().items() if f"{section} {row}" in names}
            outcomes[section] = {row: measure(row, make, arguments.peers) for row, make in rows.items()}
        limits = {name: max(rate, before[name]) for name, rate in measure_limits(threads).items()}
        print_table(limit_table(limits, threads))
        for section, measured in outcomes.items():
            if measured:
                print_table(section_table(section, threads, limits, measured, arguments.peers))


def measure_limits(threads: int) -> Limits:
    """Return operations per second by the dtype of operands, without those the machine has no instruction for, and reads."""
    peaks = {dtype: multiply_add_peak(dtype, threads) for dtype in MULTIPLY_ADDS}
    return {**{d: p for d, p in peaks.items() if p is not None}, "reads": read_rate(threads)}


def limit_table(limits: Limits, threads: int) -> Table:
    """Return a table of the machine's limits; an instruction that it lacks is a row that says so."""
    made = table(f"limits of {threads} thread(s)", ["operands"], ["rate", "of f32"], ["instruction"])
    for dtype, instruction in MULTIPLY_ADDS.items():
        if dtype in limits:
            cells = f"{limits[dtype] / 1e9:.0f} Gop/s", f"{limits[dtype] / limits['f32']:.2f}", instruction.instruction
        else:
            cells = "-", "-", f"no {instruction.instruction}: this CPU lacks {instruction.features[0]}"
        made.add_row(dtype, *cells)
    made.add_row("reads", f"{limits['reads'] / 1e9:.1f} GB/s", "-", "")
    return made


def section_table(
    section: str, threads: int, limits: Limits, outcomes: Mapping[str, Outcome], peers: tuple[str, ...]
) -> Table:
    """Return one row for each case, with the reason where ours does not run it."""
    systems = dict.fromkeys(name for o in outcomes.values() for name in o.seconds if name not in (OURS, *peers))
    shares = ["rate", "of limit"] if any(o.work for o in outcomes.values()) else []
    made = table(
        f"{section}, {threads} thread(s): ms (ratio to ours) error",
        [section],
        [OURS, *shares, *systems, *peers],
        ["note"],
    )
    for row, outcome in outcomes.items():
        cells = rate_cells(outcome, limits) if shares else []
        made.add_row(
            row,
            *(outcome.format_system(OURS), *cells, *map(outcome.format_system, (*systems, *peers))),
            outcome.refusal,
        )
    return made


def rate_cells(outcome: Outcome, limits: Limits) -> list[str]:
    """Format the rate of ours, and its share of the limit: that of f32 if the machine has none for the operands."""
    if OURS not in outcome.seconds:
        return ["-", "-"]
    rate, unit = outcome.work / outcome.seconds[OURS], "GB/s" if outcome.limit == "reads" else "Gop/s"
    return [f"{rate / 1e9:.3g} {unit}", f"{rate / limits.get(outcome.limit, limits['f32']):.0%}"]
