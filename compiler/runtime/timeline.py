"""Timeline of a call: when each step ran, and when each thread took part in it.

The clock is read inside the call, between the steps and around the work of each thread (see timeline.ll), so that steps are
timed as they run: after one another, with the caches and the number of threads that a call has.
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch

from compiler.codegen.llvm.object_file import emit_object
from compiler.codegen.llvm.program_entry import MARK
from compiler.codegen.llvm.targets import host_target
from compiler.errors import TargetError
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.tile.program import OpaqueCall, Program, Repeat, Step, View, execution_counts
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.executable import Executable, split_segments
from compiler.runtime.loader import host_module, link_objects, symbol_address
from compiler.runtime.threads import CLOCKS, architecture, kernel_functions, team

MAX_SPANS = 1 << 16
"""Most times of threads that are recorded in a call; the others are lost."""

CPU_CLOCK = """
define internal i64 @ticks() {{
  %time = alloca {{ i64, i64 }}
  call i32 @clock_gettime(i32 {clock}, ptr %time)
  %seconds = load i64, ptr %time
  %slot = getelementptr i64, ptr %time, i64 1
  %nanoseconds = load i64, ptr %slot
  %whole = mul i64 %seconds, 1000000000
  %t = add i64 %whole, %nanoseconds
  ret i64 %t
}}
declare i32 @clock_gettime(i32, ptr)
"""
"""Read the CPU time of the thread, in nanoseconds."""


@dataclass(frozen=True)
class Span:
    """Time of one run of step `step`, or of the part of it that `thread` worked on; seconds since the call began.

    Thread 0 is the caller; the others are the workers of the team.
    """

    step: int
    begin: float
    end: float
    thread: int = 0


@dataclass(frozen=True)
class Timeline:
    """One call: `runs` of its steps in order, and `spans` of the threads that shared them, MAX_SPANS at most."""

    runs: tuple[Span, ...]
    spans: tuple[Span, ...]

    def step_seconds(self, steps: int) -> list[float]:
        """Return the seconds of each of `steps` steps, all of its runs together."""
        total = [0.0] * steps
        for run in self.runs:
            total[run.step] += run.end - run.begin
        return total


class TimelineRecorder:
    """Calls of a program that record their timeline: `recorder(inputs)` returns that of one call; TargetError for a GPU's.

    Steps are numbered in the order of `execution_counts`.  With `cpu_time` their times are the CPU time of one thread, which excludes other
    processes but takes a system call to read.
    """

    def __init__(self, exe: Executable, cpu_time: bool = False) -> None:
        if not isinstance(exe, CPUExecutable):
            raise TargetError(f"programs of {exe.target.name} are not timed step by step; use torch.profiler")
        self._segments = segment_runs(exe.program)
        clock, functions = CLOCKS[architecture()], dict(kernel_functions())
        if cpu_time:
            clock = CPU_CLOCK.format(clock=time.CLOCK_THREAD_CPUTIME_ID)
            functions["clock_gettime"] = symbol_address(ctypes.CDLL(None), "clock_gettime")
        code = emit_object(host_module("timeline") + clock, host_target())
        self._library = link_objects([code], ["timeline", "timed_parallel", MARK], functions)
        self._marks = (ctypes.c_int64 * sum(len(runs) + 1 for runs in self._segments))()
        self._spans = np.empty((MAX_SPANS, 3), np.int64)
        self._table = (ctypes.c_int64 * 5).from_address(self._library["timeline"])
        self._table[:] = [ctypes.addressof(self._marks), self._spans.ctypes.data, MAX_SPANS, 0, 0]
        marking = {"tilewright_parallel": self._library["timed_parallel"], MARK: self._library[MARK]}
        self._executable = exe.with_marks(ctypes.CFUNCTYPE(None)(self._library[MARK]), marking)
        self._seconds_per_tick = 1e-9 if cpu_time else 1e-6 / team().ticks_per_microsecond()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Timeline:
        self._table[3:] = [0, 0]
        self._executable.run(inputs)
        if not self._segments:
            return Timeline((), ())
        start, recorded = self._marks[0], min(self._table[4], MAX_SPANS)
        runs = runs_between_marks(self._segments, ((mark - start) * self._seconds_per_tick for mark in self._marks))
        threads, *times = self._spans[:recorded].T
        begins, finishes = ((t - start) * self._seconds_per_tick for t in times)
        spans = attribute_spans(runs, zip(threads.tolist(), begins.tolist(), finishes.tolist(), strict=True))
        return Timeline(tuple(runs), tuple(spans))


def runs_between_marks(segments: Iterable[Sequence[int]], marks: Iterable[float]) -> list[Span]:
    """Return the run of every step in `segments`, each of which has a mark before its first step and after every step."""
    ends = iter(marks)
    bounds = ((steps, pairwise(islice(ends, len(steps) + 1))) for steps in segments)
    return [Span(step, *times) for steps, pairs in bounds for step, times in zip(steps, pairs, strict=True)]


def segment_runs(program: Program) -> list[list[int]]:
    """Return the number of each step that runs, in order, for each segment of `program`."""
    segments, first = [], 0
    for segment in split_segments(program):
        steps = (segment,) if isinstance(segment, OpaqueCall) else tuple(segment)
        segments.append(list(_executed(steps, first)))
        first += sum(1 for _ in execution_counts(steps))
    return segments


def _executed(steps: Iterable[Step], first: int) -> Iterator[int]:
    """Yield the number of each step that runs; those of `steps` count from `first`."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from list(_executed(step.steps, first)) * evaluate(step.count, {})
            first += sum(1 for _ in execution_counts(step.steps))
        elif not isinstance(step, View):
            yield first
            first += 1


def attribute_spans(runs: Sequence[Span], recorded: Iterable[tuple[int, float, float]]) -> Iterator[Span]:
    """Yield the time of each thread, given as (thread, begin, end), with the step that ran when it began."""
    begins = [run.begin for run in runs]
    for thread, begin, end in sorted(recorded, key=lambda span: span[1]):
        yield Span(runs[max(0, bisect_right(begins, begin) - 1)].step, begin, end, thread)
