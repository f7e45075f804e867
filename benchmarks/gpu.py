"""Programs on a GPU against PyTorch, checked against float64 and timed by device events: `python -m benchmarks gpu [ROW ...]`.

    --minutes 8      for all rows together; each has a part of what is left, and its slow contestants go without
    --without max-autotune
    --small          small sizes; with TRITON_INTERPRET=1 in the environment they need no GPU, and no time is shown

A row has the errors of ours and of eager, relative to the largest result; the milliseconds of ours, eager and Inductor, default and
max-autotune; and, of a kernel, what it reaches of the copy bandwidth that the first row measured, or its operations in a second.
f32 is IEEE 754's everywhere: TF32 is off.  Networks are calls of batch size 1, ours recorded as CUDA graphs, as max-autotune's are.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch

import compiler
from benchmarks.arguments import BenchmarkArguments, print_table
from benchmarks.budgeted_process import BudgetedProcess
from benchmarks.gpu_cases import MODELS, ROWS, Call, Problem, tensors
from benchmarks.peer_comparison import format_milliseconds
from benchmarks.peers import silenced
from compiler.codegen.triton.targets import is_interpreted
from compiler.report.measure import numerical_error
from compiler.report.render import table
from compiler.runtime.gpu_kernel_timer import device_seconds
from compiler.torch_backend import target_of_device

INTERPRETED_TARGET = "sm90"
"""Target of programs that Triton's interpreter runs."""

COPIED_BYTES = 1 << 30
"""Size of the tensor whose copy measures the bandwidth of memory: many times the last cache."""


def eager(problem: Problem, target: str) -> Call:
    """Call PyTorch."""
    return lambda: tensors(problem.function(*problem.inputs))


def inductor(problem: Problem, target: str, mode: str | None = None) -> Call:
    """Compile by Inductor."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(problem.function, mode=mode)
    return lambda: tensors(compiled(*problem.inputs))


CONTESTANTS: dict[str, Callable[[Problem, str], Call]] = {
    "eager": eager,
    "tilewright": lambda problem, target: problem.ours(target),
    "Inductor": inductor,
    "max-autotune": lambda problem, target: inductor(problem, target, "max-autotune"),
}
"""Those that take long to compile come last."""


@dataclass(frozen=True)
class Measurement:
    """Error of one contestant against float64, relative to the largest result, and seconds of a call; None if nobody timed it."""

    contestant: str
    error: float
    seconds: float | None
    bytes: int = 0
    flops: int = 0


def measure_row(name: str, contestants: Sequence[str], small: bool, interpreted: bool) -> Iterator[Measurement | str]:
    """Yield a measurement of each contestant in a row, or why there is none.  Only results near float64's are timed."""
    torch.backends.cudnn.allow_tf32 = False
    problem = ROWS[name].problem("cpu" if interpreted else "cuda", small)
    target = INTERPRETED_TARGET if interpreted else target_of_device(problem.inputs)
    with torch.no_grad():
        truth, tolerance = problem.truth(), 1e-5
        for contestant in contestants:
            try:
                with silenced():
                    call = CONTESTANTS[contestant](problem, target)
                    error = numerical_error(call(), truth).relative
                    is_right = error <= tolerance or contestant == "eager"
                    seconds = device_seconds(call) if is_right and not interpreted else None
            except Exception as failure:  # whatever a compiler or the device raises
                yield f"{contestant}: {type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:120]}"
                continue
            if not is_right:
                yield f"{contestant}: wrong by {error:.1e}, allowed {tolerance:.1e}"
                continue
            if contestant == "eager":
                tolerance = max(tolerance, 8 * error)
            yield Measurement(contestant, error, seconds, problem.bytes, problem.flops)


def measure_copy() -> Iterator[float]:
    """Yield the bytes per second that PyTorch reads and writes in a copy of `COPIED_BYTES`."""
    source = torch.empty(COPIED_BYTES, dtype=torch.int8, device="cuda")
    copied = torch.empty_like(source)
    yield 2 * COPIED_BYTES / device_seconds(lambda: copied.copy_(source))


def answer(what: str, *args: Any) -> Iterator[Any]:
    """Answer a call of the process that has the GPU."""
    yield from measure_copy() if what == "copy" else measure_row(*args)


@dataclass
class Row:
    """The measurements of a row, and what went wrong in it."""

    name: str
    measured: dict[str, Measurement] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def seconds(self, contestant: str) -> float | None:
        """Return the seconds of a contestant."""
        return self.measured[contestant].seconds if contestant in self.measured else None

    def cells(self, contestants: Sequence[str], copy_rate: float) -> list[str]:
        """Return the cells of the table; `copy_rate` in bytes per second, 0 if it is not known."""
        ours, errors = self.measured.get("tilewright"), [self.measured.get(c) for c in ("tilewright", "eager")]
        reached = ""
        if ours and ours.seconds and ours.flops:
            reached = f"{ours.flops / ours.seconds / 1e12:.1f} TFLOP/s"
        elif ours and ours.seconds and ours.bytes and copy_rate:
            reached = f"{ours.bytes / ours.seconds / copy_rate:.0%} of copy"
        times = (self.time_cell(c) for c in contestants)
        return [*(f"{m.error:.0e}" if m else "-" for m in errors), *times, reached]

    def time_cell(self, contestant: str) -> str:
        """Return the milliseconds of a contestant, of another one beside their ratio to ours."""
        seconds, ours = self.seconds(contestant), self.seconds("tilewright")
        if seconds is None:
            return "-"
        return format_milliseconds(seconds) + (
            f" ({seconds / ours:.2f}x)" if ours and contestant != "tilewright" else ""
        )


def measure_rows(
    names: Sequence[str], contestants: Sequence[str], small: bool, interpreted: bool, seconds: float
) -> tuple[list[Row], float]:
    """Measure rows in `seconds`, and the copy bandwidth in bytes per second, 0 in the interpreter."""
    end, worker, copy_rate = time.monotonic() + seconds, BudgetedProcess(answer), 0.0
    rows = [Row(name) for name in names]
    try:
        if not interpreted:
            (copy_rate,) = worker.results("copy", seconds=seconds)
        for k, row in enumerate(rows):
            share = 2 * (end - time.monotonic()) / (len(rows) - k + 1)  # rows that are done early leave more to others
            try:
                for m in worker.results("row", row.name, contestants, small, interpreted, seconds=max(0.0, share)):
                    if isinstance(m, Measurement):
                        row.measured[m.contestant] = m
                    else:
                        row.problems.append(m)
            except (TimeoutError, RuntimeError) as error:
                row.problems.append(str(error))
    finally:
        worker.close()
    return rows, copy_rate


def geometric_means(rows: Sequence[Row], contestants: Sequence[str]) -> list[str]:
    """Return the geometric mean of each contestant's time divided by ours, over the networks that both ran."""
    networks, lines = {case.name for case in MODELS}, []
    for c in contestants:
        pairs = [(row.seconds(c), row.seconds("tilewright")) for row in rows if row.name in networks]
        ratios = [theirs / ours for theirs, ours in pairs if theirs and ours]
        if ratios and c != "tilewright":
            lines.append(f"{c} / ours, {len(ratios)} networks: {statistics.geometric_mean(ratios):.2f}x")
    return lines


def environment() -> Mapping[str, str]:
    """Return date, device and versions."""
    versions = {name: version(name) for name in ("torch", "triton")} | {"tilewright": compiler.__version__}
    toolkit = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "Triton's interpreter, no GPU"
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"date": date, "device": device, "toolkit": toolkit, "Python": platform.python_version(), **versions}


def missing() -> str:
    """Return what is missing to measure, and what can be done without it; "" if nothing is."""
    if not find_spec("triton"):
        return "Triton is not here: install tilewright[gpu]."
    if torch.cuda.is_available() or is_interpreted():
        return ""
    return (
        "No GPU is here (torch.cuda.is_available() is False), so nothing is measured.\n"
        "Without one, TRITON_INTERPRET=1 python -m benchmarks gpu --small checks the same programs against float64,\n"
        "python -m benchmarks gpu_static reads the code of kernels, and gpu_compile that of whole networks."
    )


def main(words: Sequence[str] = ()) -> int:
    """Print the table; return 1 if a result is wrong or nothing can be measured."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser("gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="parts of the names of rows (all)")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--without", default="", help=f"comma-separated, of {', '.join(CONTESTANTS)}")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(words)
    if problem := missing():
        print(problem)
        return 1
    interpreted = is_interpreted()
    names = BenchmarkArguments(tuple(args.rows)).select_rows(ROWS)
    chosen = [c for c in CONTESTANTS if c not in args.without.split(",")]
    shown = ["tilewright", *(c for c in chosen if c != "tilewright")]
    rows, copy_rate = measure_rows(names, chosen, args.small, interpreted, 60 * args.minutes)
    heads = ["error", "eager's", *(f"{c}, ms" for c in shown), "reached"]
    made = table("results against float64, times by device events (median)", ["row"], heads)
    for row in rows:
        made.add_row(row.name, *row.cells(shown, copy_rate))
    bandwidth = [f"copy of {COPIED_BYTES >> 30} GiB: {copy_rate / 1e12:.2f} TB/s"] if copy_rate else []
    problems = [f"{row.name}: {text}" for row in rows for text in row.problems]
    facts = ", ".join(f"{name} {value}" for name, value in environment().items())
    print_table(made, *bandwidth, *geometric_means(rows, shown), *problems, facts)
    return int(any("tilewright" not in row.measured for row in rows))
