"""Measure kernels inside whole programs once, and compare the cost model with these times as often as it changes.

    python -m benchmarks predictions record [--programs N] [--seed S]     measure on one thread, and write the record
    python -m benchmarks predictions [--worst N]                          compare with the record

The corpus is the networks of benchmarks/networks for this machine, for x86-64-v3 and for x86-64, and programs that
`survey` draws.  The record has the text of each scheduled program and the least seconds of each of its launches.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor, nn

import compiler
from benchmarks.arguments import print_table
from benchmarks.networks import NETWORKS
from benchmarks.rank import kendall_tau
from benchmarks.survey.drawing import KINDS, draw_program
from benchmarks.survey.rows import KernelRow
from benchmarks.survey.summary import PredictionQuality, prediction_quality
from compiler.codegen.backend import target_by_name
from compiler.codegen.llvm.targets import CPUTarget, machine_here
from compiler.cost.machine import Machine
from compiler.driver.variant import require_executable
from compiler.ir.scalar import Load
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.text.tile_printer import print_program
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Kernel, Reduce, stmt_exprs, walk
from compiler.ir.tile.program import Launch, Program, execution_counts
from compiler.report.render import table
from compiler.runtime.executable import Executable
from compiler.runtime.program_time import program_seconds
from compiler.runtime.timeline import TimelineRecorder

RECORD = Path(tempfile.gettempdir()) / "tilewright-predictions.jsonl.gz"
"""The record, unless `--to` names another file."""

NETWORK_TARGETS = ("host", "x86-64-v3", "x86-64")
"""Targets for which the networks are measured."""

MIN_CALLS, MAX_CALLS, PROGRAM_SECONDS = 8, 200, 1.0
"""Calls of a program whose least times count, and the seconds after which they end."""

CLOCK_SECONDS = 5e-8
"""Kernels that take less are not compared: reading the clock between them takes about as long."""


@dataclass(frozen=True)
class MeasuredProgram:
    """A scheduled program without its constants' values, and the least seconds of a run of each of its launches, in order."""

    name: str
    target: str
    text: str
    seconds: tuple[float, ...]


# recording


def recorded_programs(seed: int, count: int) -> Iterator[MeasuredProgram]:
    """Measure the networks for each target, and `count` drawn programs for this machine; says which ones fail."""
    for target in NETWORK_TARGETS:
        for name, make in NETWORKS.items():
            yield from measured(name, target, *make())
    for k in range(count):
        drawn = draw_program(seed, k, [*KINDS][k % len(KINDS)])
        loaded = drawn.load()
        if loaded.dynamic_shapes is None:  # else the code is for other sizes than the model's hints
            yield from measured(f"{seed}/{drawn.kind}/{k} {drawn.family}", "host", loaded.model, loaded.args)


def measured(name: str, target: str, model: nn.Module, args: tuple[Tensor, ...]) -> Iterator[MeasuredProgram]:
    """Compile and measure one model; nothing if that fails, with a line that says why."""
    try:
        compiled = compiler.compile(model, args, options=compiler.Options(target=target))
        for program in compiled.compiled_graph.executed_programs(compiled.example_tensors()):
            exe = require_executable(program.variant, program.executable)
            seconds = least_seconds(exe, program.inputs)
            yield MeasuredProgram(name, target, program_text(exe.program), tuple(seconds))
    except Exception as error:  # a drawn program may fail, which is the survey's subject
        print(f"{name} for {target}: {type(error).__name__}: {error}"[:200])


def least_seconds(exe: Executable, inputs: Sequence[Tensor]) -> list[float]:
    """Return the least seconds of each launch over several calls; for one that runs repeatedly, of all its runs.

    Other processes interrupt long kernels in every call, so CPU time counts where it is less.
    """
    counts = [*execution_counts(exe.program.steps)]
    recorders = TimelineRecorder(exe), TimelineRecorder(exe, cpu_time=True)
    best, end = [float("inf")] * len(counts), time.perf_counter() + PROGRAM_SECONDS
    for call in range(MAX_CALLS):
        if call >= MIN_CALLS and time.perf_counter() > end:
            break
        best = list(map(min, best, recorders[call % 2](inputs).step_seconds(len(counts))))
    return [s for s, (step, _) in zip(best, counts, strict=True) if isinstance(step, Launch)]


def program_text(program: Program) -> str:
    """Return the text of a program whose constants have become inputs, so that it has no data."""
    return print_program(replace(program, inputs=(*program.inputs, *program.constants), constants={}))


def record(path: Path, seed: int, count: int) -> None:
    """Measure the corpus and write the record."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    path.unlink(missing_ok=True)
    with torch.no_grad():
        for program in recorded_programs(seed, count):
            with gzip.open(path, "at", encoding="utf-8", compresslevel=1) as file:
                file.write(json.dumps(asdict(program)) + "\n")
            print(f"{time.perf_counter() - start:.0f} s: {program.name} for {program.target}", flush=True)


# comparing


@dataclass(frozen=True)
class Launched:
    """A kernel in a program of the record, with the measured and predicted seconds of all its runs in a call."""

    program: str
    target: str
    kernel: Kernel
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive if it is too long."""
        return self.predicted / self.seconds - 1


def read_record(path: Path) -> list[MeasuredProgram]:
    """Return the programs of a record."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [MeasuredProgram(**json.loads(line)) for line in file]


def predicted_launches(measured: MeasuredProgram, machine: Machine | None = None) -> list[Launched]:
    """Return the kernels of a program, each once; `machine` instead of this one as it runs code for the target."""
    program, target = parse_program(measured.text), target_by_name(measured.target)
    assert isinstance(target, CPUTarget)
    machine = machine or machine_here(target)
    totals: dict[str, tuple[float, float]] = {}
    launches = [s for s, _ in execution_counts(program.steps) if isinstance(s, Launch)]
    for launch, seconds, predicted in zip(launches, measured.seconds, program_seconds(program, machine), strict=True):
        a, b = totals.get(launch.kernel, (0.0, 0.0))
        totals[launch.kernel] = a + seconds, b + predicted
    known = {n: t for n, t in totals.items() if t[0] > CLOCK_SECONDS}
    return [Launched(measured.name, measured.target, program.kernels[n], *t) for n, t in known.items()]


def kernel_groups(k: Launched) -> Iterator[str]:
    """Yield what a kernel has in common with others: target, structure, dtypes, and the cache that its data fit."""
    body = [*walk(k.kernel.body)]
    reductions = [s for s in body if isinstance(s, Reduce)]
    loads = [e for s in body for v in stmt_exprs(s) for e in v.subexprs if isinstance(e, Load)]
    yield f"target {k.target}"
    yield "kind: " + (
        "contraction" if any(map(is_contraction, reductions)) else "reduction" if reductions else "elementwise"
    )
    if any(e.mask is not None for e in loads):
        yield "masked loads"
    calls = {c.primitive for s in body for v in stmt_exprs(s) for c in v.calls}
    yield from (f"calls {c}" for c in sorted(calls & {"exp", "log", "div", "sqrt", "rsqrt", "rem"}))
    yield from (f"dtype {d}" for d in sorted({p.type.dtype.name for p in k.kernel.params} - {"f32"}))
    limit = next((text for t, text in ((2e-6, "2 us"), (2e-5, "20 us"), (2e-4, "200 us")) if k.seconds < t), "")
    yield f"time < {limit}" if limit else "time: longer"


def quality(launches: Iterable[Launched]) -> PredictionQuality | None:
    """Return the errors of predicted launches."""
    return prediction_quality(KernelRow(k.kernel.name, k.seconds, k.predicted) for k in launches)


def group_table(launches: Sequence[Launched]) -> Table:
    """Return the errors of each group of kernels; `bias` is the median of predicted / measured time."""
    groups: dict[str, list[Launched]] = {}
    for k in launches:
        for name in ("all", *kernel_groups(k)):
            groups.setdefault(name, []).append(k)
    made = table("predicted / measured time by group", ["kernels"], ["number", "bias", "error", "95 %", "tau"])
    for name, members in sorted(groups.items()):
        if q := quality(members):
            bias = sorted(k.error + 1 for k in members)[len(members) // 2]
            made.add_row(
                name, f"{len(members)}", f"{bias:.2f}", f"{q.median_error:.0%}", f"{q.high_error:.0%}", f"{q.tau:.2f}"
            )
    return made


def worst_table(launches: Sequence[Launched], count: int) -> Table:
    """Return the kernels whose predictions are farthest from the measured times, by their ratio."""
    made = table("farthest off", ["program", "target", "kernel"], ["us", "predicted"])
    for k in sorted(launches, key=lambda k: -max(k.error + 1, 1 / (k.error + 1)))[:count]:
        made.add_row(k.program, k.target, k.kernel.name, f"{k.seconds * 1e6:.2f}", f"{k.predicted * 1e6:.2f}")
    return made


def program_tau(launches: Iterable[Launched]) -> float:
    """Return Kendall's rank correlation of the predicted and measured times of whole programs."""
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for k in launches:
        a, b = totals.get((k.program, k.target), (0.0, 0.0))
        totals[k.program, k.target] = a + k.predicted, b + k.seconds
    return kendall_tau([*combinations(totals.values(), 2)])


def main(arguments: Sequence[str]) -> None:
    """Record, or print how far predictions are from the recorded times."""
    c = argparse.ArgumentParser(
        "python -m benchmarks predictions", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    c.add_argument("action", nargs="?", choices=["record"], help="measure again (else compare with the record)")
    c.add_argument("--to", type=Path, default=RECORD, metavar="FILE", help=f"the record ({RECORD})")
    c.add_argument("--seed", type=int, default=1, help="of the drawn programs (1)")
    c.add_argument("--programs", type=int, default=60, help="number of drawn programs (60)")
    c.add_argument("--worst", type=int, default=10, help="kernels that are listed by name (10)")
    given = c.parse_args(list(arguments))
    if given.action:
        record(given.to, given.seed, given.programs)
    launches = [k for p in read_record(given.to) for k in predicted_launches(p)]
    tau = f"Kendall tau of whole programs {program_tau(launches):.3f}"
    print_table(worst_table(launches, given.worst))
    print_table(group_table(launches), tau)
