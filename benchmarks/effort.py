"""What `Options(effort="fast")` saves and costs: `python -m benchmarks effort [ROW ...] --threads 2`."""

from __future__ import annotations

from functools import partial

import torch

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.compile_time import load_modules, timed
from benchmarks.networks import NETWORKS
from benchmarks.peer_comparison import burst_medians
from compiler.report.render import table

EFFORTS = ("default", "fast")


def main(arguments: BenchmarkArguments) -> None:
    """Print for each network the seconds from an exported program to its first result, and the time of a call, fast to default."""
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        load_modules()
        rows = table(f"effort, {threads} thread(s)", ["network"], ["default, s", "fast, s", "fast / default, call"])
        for name in arguments.select_rows(NETWORKS):
            rows.add_row(name, *compare_efforts(name))
        print_table(rows)


def compare_efforts(name: str) -> list[str]:
    """Return the cells of a row."""
    model, args = NETWORKS[name]()
    with torch.no_grad():
        program = torch.export.export(model, args)
        calls, seconds = [], []
        for effort in EFFORTS:
            compiled = compiler.compile(program, args, options=compiler.Options(effort=effort, cache=""))
            calls.append(partial(compiled, *args))
            spent, _ = timed(calls[-1])
            seconds.append(spent + compiled.compile_seconds["total"])
        default, fast = burst_medians(calls, rounds=9, burst=0.1)
    return [*(f"{s:.2f}" for s in seconds), f"{fast / default:.2f}"]
