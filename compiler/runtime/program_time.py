"""Predicted time of each launch of a program, which finds in the caches what the launches before have left there.

The *reuse distance* of data are the distinct bytes touched since they were touched last: a cache that replaces the line
unused for longest still holds them if it is larger (Mattson, Gecsei, Slutz and Traiger, "Evaluation Techniques for Storage
Hierarchies", 1970).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.cost.kernel_time import KernelEstimate
from compiler.cost.machine import Machine
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.tile.program import Launch, Program, execution_counts
from compiler.runtime.executable import workspace_buffers
from compiler.runtime.memory import in_place_pairs, plan_memory

WORKSPACE = "workspace"


@dataclass(frozen=True)
class Interval:
    """Bytes `start` to `stop` of a buffer or of the workspace, of which `density` is the part that was touched."""

    memory: str
    start: float
    stop: float
    density: float = 1.0

    @property
    def touched(self) -> float:
        """Bytes that were touched."""
        return (self.stop - self.start) * self.density

    def without(self, other: Interval) -> list[Interval]:
        """Return the parts of this interval outside `other`."""
        if self.memory != other.memory or other.stop <= self.start or self.stop <= other.start:
            return [self]
        parts = ((self.start, min(self.stop, other.start)), (max(self.start, other.stop), self.stop))
        return [Interval(self.memory, a, b, self.density) for a, b in parts if a < b]


@dataclass
class ReuseStack:
    """Intervals of memory by the time of their last use, the latest first."""

    intervals: list[Interval] = field(default_factory=list)

    def distance(self, wanted: Interval) -> float:
        """Return the bytes touched since `wanted` was touched, the mean over its parts; infinite where it never was."""
        depth, found, total = 0.0, 0.0, 0.0
        size = wanted.stop - wanted.start
        for own in self.intervals:
            common = min(own.stop, wanted.stop) - max(own.start, wanted.start) if own.memory == wanted.memory else 0.0
            if common > 0:
                found, total = found + common, total + common * depth
                if found >= size:
                    break
            depth += own.touched
        return total / found if found >= size else float("inf")

    def touch(self, latest: Interval) -> None:
        """Put `latest` on top."""
        self.intervals = [latest, *(part for own in self.intervals for part in own.without(latest))]


def program_seconds(program: Program, machine: Machine) -> list[float]:
    """Return the estimated seconds of all runs of each launch, in the order of `execution_counts`, in a series of calls."""
    estimates = {name: KernelEstimate(kernel, machine) for name, kernel in program.kernels.items()}
    steps = [(s, times) for s, times in execution_counts(program.steps) if isinstance(s, Launch)]
    offsets = plan_memory(program, workspace_buffers(program), in_place_pairs(program)).offsets
    stack, seconds = ReuseStack(), list[float]()
    for is_second in (False, True):
        for launch, times in steps:
            kernel, estimate = program.kernels[launch.kernel], estimates[launch.kernel]
            intervals, distances = list[Interval](), dict[str, float]()
            for param, argument in zip(kernel.params, launch.arguments, strict=True):
                root, size = program.root_buffer(argument), dim_hint(param.type.nbytes)
                start, memory = (offsets[root], WORKSPACE) if root in offsets else (0, root)
                touched = min(size, estimate.touched_bytes(param.name))
                intervals.append(Interval(memory, start, start + size, touched / size if size else 0.0))
                distances[param.name] = stack.distance(intervals[-1]) if is_second else 0.0
            for interval in intervals:
                stack.touch(interval)
            if is_second:
                seconds.append(times * estimate.seconds(distances))
    return seconds
