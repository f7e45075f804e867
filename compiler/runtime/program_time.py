"""Predicted time of each launch of a program, which finds in the caches what the launches before have left there.

The *reuse distance* of data are the distinct bytes touched since they were touched last: a cache that replaces the line
unused for longest still holds them if it is larger (Mattson, Gecsei, Slutz and Traiger, "Evaluation Techniques for Storage
Hierarchies", 1970).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.cost.cache_traffic import ReuseDistances
from compiler.cost.kernel_time import KernelEstimate
from compiler.cost.machine import Machine
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.tile.program import Launch, Program, execution_counts
from compiler.runtime.executable import workspace_buffers
from compiler.runtime.memory import in_place_pairs, plan_memory

WORKSPACE = "workspace"
"""Name of the memory that intermediates share."""

MIN_DENSITY = 0.02
"""Least part of an interval that is followed."""


@dataclass(frozen=True)
class Interval:
    """Bytes `start` to `stop` of a buffer or of the workspace, of which `density` is the part that was touched."""

    memory: str
    start: float
    stop: float
    density: float = 1.0

    @property
    def size(self) -> float:
        """Bytes from start to stop."""
        return self.stop - self.start

    @property
    def touched(self) -> float:
        """Bytes that were touched."""
        return self.size * self.density

    def after(self, later: Interval) -> list[Interval]:
        """Return the parts of this interval whose last use is still the same after `later` was touched."""
        if self.memory != later.memory or later.stop <= self.start or self.stop <= later.start:
            return [self]
        first, last = max(self.start, later.start), min(self.stop, later.stop)
        kept = self.density * (1 - later.density)  # as if lines were touched at random
        parts = ((self.start, first, self.density), (first, last, kept), (last, self.stop, self.density))
        return [Interval(self.memory, a, b, d) for a, b, d in parts if a < b and d > MIN_DENSITY]


@dataclass
class ReuseStack:
    """Intervals of memory by the time of their last use, the latest first."""

    intervals: list[Interval] = field(default_factory=list)

    def distances(self, wanted: Interval) -> ReuseDistances:
        """Return the parts of `wanted` with the bytes touched since; those never touched count as touched first of all."""
        depth, missing, found = 0.0, 1.0, list[tuple[float, float]]()
        for own in self.intervals:
            if own.memory == wanted.memory:
                common = max(0.0, min(own.stop, wanted.stop) - max(own.start, wanted.start)) / wanted.size
                if part := min(missing, common * own.density):
                    found.append((part, depth))
                    missing -= part
            if missing <= MIN_DENSITY:
                return found
            depth += own.touched
        return [*found, (missing, depth)]

    def touch(self, latest: Interval) -> None:
        """Put `latest` on top."""
        self.intervals = [latest, *(part for own in self.intervals for part in own.after(latest))]


def program_seconds(program: Program, machine: Machine) -> list[float]:
    """Return the estimated seconds of all runs of each launch, in the order of `execution_counts`, in a series of calls."""
    steps = [(s, times) for s, times in execution_counts(program.steps) if isinstance(s, Launch)]
    offsets = plan_memory(program, workspace_buffers(program), in_place_pairs(program)).offsets
    stack, seconds, estimates = (
        ReuseStack(),
        list[float](),
        dict[tuple[str, tuple[tuple[str, str], ...]], KernelEstimate](),
    )
    for is_second in (False, True):
        for launch, times in steps:
            kernel, places, shared = (
                program.kernels[launch.kernel],
                dict[tuple[str, float, int], str](),
                dict[str, str](),
            )
            for param, argument in zip(kernel.params, launch.arguments, strict=True):
                root, size = program.root_buffer(argument), dim_hint(param.type.nbytes)
                place = (WORKSPACE, offsets[root], size) if root in offsets else (root, 0, size)
                if (first := places.setdefault(place, param.name)) != param.name:
                    shared[param.name] = first
            key = launch.kernel, tuple(shared.items())
            if key not in estimates:
                estimates[key] = KernelEstimate(kernel, machine, shared)
            estimate = estimates[key]
            intervals = {
                name: Interval(memory, start, start + size, min(1.0, estimate.touched_bytes(name) / size))
                for (memory, start, size), name in places.items()
                if size
            }
            code = Interval(f"code of {launch.kernel}", 0, estimate.code_bytes)
            if is_second:
                reuse = {name: stack.distances(i) for name, i in intervals.items()}
                once = estimate.seconds(reuse, stack.distances(code))
                again = (times - 1) * estimate.seconds() if times > 1 else 0.0
                seconds.append(once + again)
            for interval in (code, *intervals.values()):
                stack.touch(interval)
    return seconds
