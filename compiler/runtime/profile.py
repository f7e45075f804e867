"""Profile of a compiled program: measured and predicted time, operations and memory traffic of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from compiler.analysis.arithmetic_dtypes import arithmetic_dtypes
from compiler.codegen.llvm.targets import CPUTarget, machine_here
from compiler.cost.estimates import count_bytes, count_flops, roofline_seconds
from compiler.cost.gpu_time import gpu_predicted_seconds, gpu_roofline_seconds
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import evaluate
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Copy, Launch, OpaqueCall, Program, Step, execution_counts
from compiler.ir.tile.thread_sync import is_parallelizable
from compiler.runtime.executable import Executable
from compiler.runtime.gpu_executable import GPUExecutable
from compiler.runtime.gpu_timeline import GPUTimelineRecorder
from compiler.runtime.program_time import program_seconds
from compiler.runtime.threads import prepare_call
from compiler.runtime.timeline import Timeline, TimelineRecorder
from compiler.runtime.timing import Timing
from compiler.target import Target


@dataclass(frozen=True)
class StepProfile:
    """Totals of one step over its `runs` in a call: seconds in each measured call, operations, least bytes of memory traffic.

    `predicted` are the seconds by the cost model, `roofline` those that the machine needs at least for `flops` and `bytes`.
    All four are 0 for a call into PyTorch.  Of a GPU's kernels, `predicted` and `roofline` are for the size hints.
    `dtypes` are those of the arithmetic, see `arithmetic_dtypes`.  `events` are hardware counters by name, if there are any.
    """

    name: str
    node: str
    timing: Timing
    flops: int
    bytes: int
    runs: int = 1
    dtypes: str = ""
    predicted: float = 0.0
    roofline: float = 0.0
    events: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Median seconds in a call."""
        return self.timing.median

    @property
    def gflops(self) -> float:
        """Arithmetic rate in 10^9 operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes_per_second(self) -> float:
        """Memory rate in 10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def percent_of_roofline(self) -> float:
        """Share of the machine's peak that the step reaches, in percent."""
        return 100 * self.roofline / self.seconds if self.seconds else 0.0


def timeline_recorder(exe: Executable) -> Callable[[Sequence[torch.Tensor]], Timeline]:
    """Return a function that calls a program and returns the timeline of the call."""
    return GPUTimelineRecorder(exe) if isinstance(exe, GPUExecutable) else TimelineRecorder(exe)


def step_profiles(exe: Executable, timelines: Sequence[Timeline]) -> list[StepProfile]:
    """Return the profile of each step from the timelines of several calls."""
    rows = list(execution_counts(exe.program.steps))
    target = exe.target
    predicted = iter(program_seconds(exe.program, machine_here(target)) if isinstance(target, CPUTarget) else ())
    seconds = zip(*(t.step_seconds(len(rows)) for t in timelines), strict=True)
    return [_make_step_profile(exe, *row, Timing(s), predicted) for row, s in zip(rows, seconds, strict=True)]


def _make_step_profile(
    exe: Executable, step: Step, runs: int, timing: Timing, predicted: Iterator[float]
) -> StepProfile:
    """Return the profile of a step; `predicted` yields the seconds of the launches in turn, on one thread."""
    program = exe.program
    if isinstance(step, Launch):
        kernel, sizes = program.kernels[step.kernel], exe.size_values
        work = runs * count_flops(kernel, sizes), runs * count_bytes(kernel, sizes)
        gpu = exe.target.machine
        if isinstance(gpu, GPU):
            seconds, bound = runs * gpu_predicted_seconds(kernel, gpu), runs * gpu_roofline_seconds(kernel, gpu)
        else:
            seconds, bound = _cpu_estimates(kernel, exe.target, sizes, next(predicted), runs)
        return StepProfile(kernel.name, step.node, timing, *work, runs, arithmetic_dtypes(kernel), seconds, bound)
    if isinstance(step, OpaqueCall):
        return StepProfile(step.operator, step.node, timing, 0, 0, runs)
    assert isinstance(step, Copy)
    return StepProfile("copy", "", timing, 0, 2 * runs * _copied_bytes(program, step), runs)


def _cpu_estimates(
    kernel: Kernel, target: Target, sizes: Mapping[str, int], predicted: float, runs: int
) -> tuple[float, float]:
    """Return the seconds of all runs of a launch by the cost model, and the least that the machine needs.

    `predicted` are those of one thread for the size hints.
    """
    assert isinstance(target, CPUTarget)
    machine, threads = machine_here(target), sharing_threads(kernel, sizes)
    bound = roofline_seconds(kernel, machine, threads, sizes)
    scale = bound / (roofline_seconds(kernel, machine, threads) or 1.0)
    return scale * predicted / threads, runs * bound


def sharing_threads(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> int:
    """Return the number of threads that may share a kernel; `sizes` as in `count_flops`."""
    if not is_parallelizable(kernel):
        return 1
    values = {s.name: s.hint for s in kernel.dynamic_sizes} | dict(sizes or {})
    most = prepare_call() if kernel.max_chunks is None else evaluate(kernel.max_chunks, values)
    return max(1, min(most, prepare_call()))


def _copied_bytes(program: Program, step: Copy) -> int:
    size = program.buffers[step.source].nbytes
    assert isinstance(size, int)
    return size
