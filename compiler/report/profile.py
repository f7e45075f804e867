"""Profile of a compiled model: the time of each kernel beside the whole call, the prediction and the roofline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from compiler.analysis.kernel_origin import KernelOrigin, kernel_origins, merge_origins
from compiler.driver.compiled_graph import ExecutedProgram
from compiler.driver.variant import require_executable
from compiler.passes.remark import format_seconds
from compiler.report.page import table_html
from compiler.report.render import (
    PLAIN_WIDTH,
    abbreviate,
    format_count,
    format_location,
    render_plain,
    table,
    truncated_text,
)
from compiler.runtime.gpu_executable import GPUExecutable
from compiler.runtime.gpu_timeline import INTERPRETED_TIMES
from compiler.runtime.hardware_counters import count_events
from compiler.runtime.profile import StepProfile, step_profiles, timeline_recorder
from compiler.runtime.timeline import Timeline
from compiler.runtime.timing import Timing


@dataclass(frozen=True)
class KernelTime(StepProfile):
    """Totals of one kernel over all its runs in one call, and the origin of its steps."""

    origin: KernelOrigin = field(default_factory=KernelOrigin)


@dataclass(frozen=True)
class Profile:
    """Times of the steps of one call, in order; prints as a table of kernels, the slowest first.

    `call` are the seconds of whole calls, measured in turns with those whose steps were timed.  `timelines` are the latter's,
    by repeat and program.  `caveat` says why the times mean nothing, where they do not.
    """

    steps: tuple[tuple[StepProfile, KernelOrigin], ...]
    call: Timing
    timelines: tuple[tuple[Timeline, ...], ...] = ()
    caveat: str = ""

    @property
    def seconds(self) -> float:
        """Total time of the steps."""
        return sum(p.seconds for p, _ in self.steps)

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """Totals by kernel, the slowest first."""
        rows = []
        for name in dict.fromkeys(p.name for p, _ in self.steps):
            steps, origins = zip(*(step for step in self.steps if step[0].name == name), strict=True)
            flops, size, runs, predicted, roofline = (
                sum(getattr(p, f) for p in steps) for f in ("flops", "bytes", "runs", "predicted", "roofline")
            )
            first, timing = steps[0], Timing.total(p.timing for p in steps)
            events = {e: sum(p.events[e] for p in steps) for e in first.events}
            totals = (timing, flops, size, runs, first.dtypes, predicted, roofline, events)
            rows.append(KernelTime(name, first.node, *totals, merge_origins(origins)))
        return tuple(sorted(rows, key=lambda k: -k.seconds))

    def percent_of_time(self, kernel: KernelTime) -> float:
        """Return the share of the total time that a kernel takes, in percent."""
        return 100 * kernel.seconds / (self.seconds or 1.0)

    @property
    def warning(self) -> str:
        """Reason not to trust the times; empty if there is none."""
        return self.caveat or self.call.warning

    @property
    def summary(self) -> str:
        """The whole call beside the sum of its steps, in a line."""
        call, steps = self.call, format_seconds(self.seconds)
        times = (
            f"{format_seconds(call.median)} (fastest {format_seconds(call.minimum)}, spread {100 * call.spread:.0f} %)"
        )
        return f"a call takes {times}, its {len(self.steps)} steps {steps}"

    def table(self) -> Table:
        """Return the kernels as a rich table."""
        times, rates = ["runs", "us", "fastest", "spread", "share", "predicted"], ["roofline", "GFLOP/s", "GB/s"]
        events = self.steps[0][0].events if self.steps else {}
        rows = table("", ["kernel", "dtype"], [*times, *rates, *events], ["ops", "where"])
        for k in self.kernels:
            cells = (
                k.name,
                k.dtypes,
                f"{k.runs}",
                *map(_microseconds, (k.seconds, k.timing.minimum)),
                f"{100 * k.timing.spread:.0f} %",
                f"{self.percent_of_time(k):.1f} %",
                _microseconds(k.predicted) if k.predicted else "",
                f"{k.percent_of_roofline:.0f} %" if k.roofline else "",
                *((f"{k.gflops:.1f}", f"{k.gbytes_per_second:.1f}") if k.bytes else ("", "")),
                *map(format_count, k.events.values()),
            )
            rows.add_row(*cells, *origin_cells(k.origin))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return everything measured as numbers and strings, for JSON; times are in seconds."""
        return {
            "call": _timing_fields(self.call),
            "steps_seconds": self.seconds,
            "warning": self.warning,
            "kernels": [_kernel_fields(k) for k in self.kernels],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.summary, "bold")
        if self.warning:
            yield Text(self.warning, "bold red")
        yield self.table()

    def __str__(self) -> str:
        return render_plain(self, PLAIN_WIDTH)

    def _repr_html_(self) -> str:
        return f"<p>{self.summary}. {self.warning}</p>{table_html(self.table())}"


def origin_cells(origin: KernelOrigin) -> tuple[Text, Text]:
    """Return the ops and the place of a kernel as table cells."""
    return truncated_text(abbreviate(origin.ops)), truncated_text(format_location(origin.place))


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.2f}" if seconds < 1e-4 else f"{seconds * 1e6:.0f}"


def _timing_fields(timing: Timing) -> dict[str, float]:
    return {"median": timing.median, "minimum": timing.minimum, "spread": timing.spread, "runs": len(timing.seconds)}


def _kernel_fields(k: KernelTime) -> dict[str, Any]:
    fields = ("name", "dtypes", "runs", "flops", "bytes", "predicted", "roofline", "percent_of_roofline", "events")
    origin: Mapping[str, Any] = {"ops": k.origin.ops, "where": asdict(k.origin.place) if k.origin.place else None}
    return {**{f: getattr(k, f) for f in fields}, **_timing_fields(k.timing), "runs": k.runs, **origin}


def measure_profile(
    call: Callable[[Sequence[torch.Tensor]], object],
    inputs: Sequence[torch.Tensor],
    programs: Sequence[ExecutedProgram],
    repeats: int,
) -> Profile:
    """Time whole calls of `call`, and the steps of the programs that take part in it, in turns."""
    executables = [require_executable(p.variant, p.executable) for p in programs]
    recorders = [timeline_recorder(exe) for exe in executables]
    calls, timelines = list[float](), list[tuple[Timeline, ...]]()
    for k in range(-1, repeats):
        start = time.perf_counter()
        call(inputs)
        for exe in executables:
            exe.synchronize()
        seconds = time.perf_counter() - start
        recorded = tuple(record(p.inputs) for record, p in zip(recorders, programs, strict=True))
        if k >= 0:  # the first round warms up
            calls.append(seconds)
            timelines.append(recorded)
    steps = [
        (replace(step, events=events), origins.get(step.node, KernelOrigin()))
        for program, exe, own in zip(programs, executables, zip(*timelines, strict=True), strict=True)
        for origins in (kernel_origins(program.stages.fused),)
        for step, events in zip(step_profiles(exe, own), count_events(exe, program.inputs, repeats), strict=True)
    ]
    is_interpreted = any(isinstance(e, GPUExecutable) and e.target.device_type == "cpu" for e in executables)
    return Profile(tuple(steps), Timing(tuple(calls)), tuple(timelines), INTERPRETED_TIMES if is_interpreted else "")
