"""From a graph to something that can be called: passes, code, and an executable for the sizes of each call."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from compiler.codegen.target import Target
from compiler.errors import ArgumentError, OpenSizeError, TypeRuleError
from compiler.ir.atoms import FEW, MANY, expected
from compiler.ir.binding import bind_symbols
from compiler.ir.graph import Data, Graph, Node
from compiler.ir.index import Index, evaluate
from compiler.ir.index import size as open_size
from compiler.ir.tile import Kernel, Program, known
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import AnyIR, AnyPass, Watch, instruments_for
from compiler.passes.manager import run_pipeline
from compiler.passes.remark import Remark
from compiler.pipeline import Scheduler, Stages, run_passes
from compiler.runtime.build import Build
from compiler.runtime.constants import stored_once
from compiler.runtime.entry import Run
from compiler.runtime.executable import Executable, cache_of
from compiler.runtime.reserve import Reserve
from compiler.runtime.stopwatch import Stopwatch
from compiler.tuning import Tuner

SHARED = (4096, 32768)
"""Sizes up to each of these share their code, and so do larger ones: their rows need not fit in local buffers."""

SMALL = 128
"""Sizes up to this, in their geometric mean, are served by code of their own where a pass would have decided otherwise for them."""

KEPT = 256
"""Sets of sizes whose memory plans are kept."""

Ranges = Mapping[str, tuple[int, int]]

LOOKUP = """def run(inputs):
    try: found = known[({key})]
    except (KeyError, IndexError, AttributeError): found = find(inputs)
    return found(inputs)
"""


SWITCH = 0.0005
"""Seconds that the thread of LLVM waits for Python's lock between two of its calls, of which each kernel takes some twenty."""


@contextmanager
def made_for_compiling() -> Iterator[None]:
    """Python hands its lock over soon, and does not look for cycles of dead objects: there are few, and the search takes long."""
    was_on, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(min(SWITCH, interval))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_on:
            gc.enable()


class Ahead(Watch):
    """Begins with the code of each kernel and with the packing of its constants while passes run on the next."""

    def __init__(self, build: Build) -> None:
        self.build, self.seconds = build, 0.0
        self.reserve, self.claimed = Reserve(), 0

    def after(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if isinstance(new, Graph) and (needed := sum(known(c.type.nbytes) for c in new.constants)) > self.claimed:
            self.build.beside("packing", self.reserve.claim, needed - self.claimed)
            self.claimed = needed

    def ready(self, kernel: Kernel, program: Program, context: Context) -> None:
        start = time.perf_counter()
        self.build.add(kernel)
        for launch in program.launches:
            if launch.kernel == kernel.name:
                for name, param in zip(launch.arguments, kernel.params, strict=True):
                    if isinstance(data := program.constants.get(name), Data):
                        self.build.beside("packing", stored_once, data, param.type, self.reserve)
        self.seconds += time.perf_counter() - start


Served: TypeAlias = tuple[Stages, Executable, Sequence[torch.Tensor]]
"""A program that takes part in a call: its IR, its code, and what it is given."""


@dataclass(frozen=True, eq=False)
class Version:
    """One program for all sizes of a compilation, made with some of them in mind."""

    stages: Stages
    code: Executable

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """The executable for these sizes."""
        return self.code.at(sizes) if self.code.sizes else self.code


@dataclass(frozen=True, eq=False)
class Compilation:
    """Code for all sizes in `ranges`, inclusive; that for `small` ones is as right for all, but not as fast."""

    ranges: Ranges
    usual: Version
    small: Version | None = None

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the code is for these sizes."""
        return all(low <= sizes[name] <= high for name, (low, high) in self.ranges.items())

    def version(self, sizes: Mapping[str, int]) -> Version:
        """The program that suits these sizes."""
        return self.small if self.small and are_small(sizes.values()) else self.usual


def are_small(sizes: Collection[int]) -> bool:
    """Whether the geometric mean of these sizes is small: together they count how much is computed."""
    return bool(math.prod(sizes) <= SMALL ** len(sizes))


@dataclass(eq=False)
class CompiledGraph:
    """A graph as native code: takes and returns flat lists of tensors.

    A graph with symbolic dimensions is compiled when its first inputs are known: for all sizes in `bounds` that are like them.
    What cannot be compiled so (a remark says why) is compiled for each set of sizes by itself.
    Results that are written back to inputs (`graph.aliases`) are copied there and left out of what is returned.
    """

    graph: Graph
    options: Options = field(default_factory=Options)
    bounds: Ranges = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"passes": 0.0, "code": 0.0})
    compilations: list[Compilation] = field(default_factory=list)
    _refusal: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.symbols = tuple(sorted(self.graph.symbols))
        self._open = [k for k, node in enumerate(self.graph.inputs) if any(isinstance(d, Index) for d in node.shape)]
        single = (n for n in self.graph.nodes if not isinstance(n.result, tuple))
        self._extents = {d for n in single for d in n.shape if isinstance(d, Index)}
        self._known: dict[tuple[int | None, ...], tuple[Stages, Executable]] = {}
        self._runs: dict[tuple[tuple[int, ...], ...], Run] = {}
        self.run: Run
        self.run = self._lookup() if self.symbols else self.build({})[1].run

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return written_back(self.graph, inputs, self.run(inputs))

    def measured(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """What a call returns, and how to get the sizes that inputs have told."""
        return self(inputs), lambda: self.sizes(inputs)

    def programs(self, inputs: Sequence[torch.Tensor]) -> list[Served]:
        """What serves these inputs: the one program, and what it is given."""
        return [(*self.build(self.sizes(inputs)), inputs)]

    def _lookup(self) -> Run:
        """What runs the executable for the shapes of its inputs, written for this graph: one that is known is found at once."""
        key = "".join(f"inputs[{k}].shape, " for k in self._open)
        space: dict[str, Any] = {"known": self._runs, "find": self._find}
        exec(compile(LOOKUP.format(key=key), "<tilewright lookup>", "exec"), space)
        run: Run = space["run"]
        return run

    def _find(self, inputs: Sequence[torch.Tensor]) -> Run:
        """The function for these inputs, which is known from then on; or one that says what is wrong with them."""
        _, executable = self.build(self.sizes(inputs))
        names = [executable.program.inputs[k] for k in self._open]
        shapes = tuple(tuple(inputs[k].shape) for k in self._open)
        if not executable.fits(dict(zip(names, shapes, strict=True))):
            return executable.run
        with self._lock:
            make_room(self._runs)
            run = self._runs[shapes] = executable.looked_up(names)
        return run

    def build(self, sizes: Mapping[str, int]) -> tuple[Stages, Executable]:
        """The executable for these sizes; code is made where none that is here serves them, and of many the oldest is forgotten."""
        key = tuple(map(sizes.get, self.symbols))
        with self._lock:
            if key not in self._known:
                self._check_windows(sizes)
                version = self._code(sizes).version(sizes)
                make_room(self._known)
                self._known[key] = version.stages, version.at(sizes)
            return self._known[key]

    def _check_windows(self, sizes: Mapping[str, int]) -> None:
        """ArgumentError where these sizes leave nothing of a value and an op does not take that: a window that does not fit."""
        if all(evaluate(d, sizes) > 0 for d in self._extents):
            return
        try:
            self.graph.specialize(sizes)
        except TypeRuleError as error:
            given = ", ".join(f"{name} = {n}" for name, n in sorted(sizes.items()))
            raise ArgumentError(f"these sizes do not fit ({given}): {error}") from error

    def _code(self, sizes: Mapping[str, int]) -> Compilation:
        """The compilation that serves these sizes; ArgumentError for a size out of bounds."""
        found = next((c for c in self.compilations if c.admits(sizes)), None)
        if found is None:
            self._admit(sizes)
            found = self._compile(sizes)
            self.compilations.append(found)
        return found

    def _compile(self, sizes: Mapping[str, int]) -> Compilation:
        """Code for these sizes and all that are like them, if it can be made, else for these alone."""
        if sizes and not self._refusal:
            try:
                return self._compile_for({name: self._around(name, n) for name, n in sizes.items()}, sizes)
            except OpenSizeError as error:
                self._refusal = f"compiled for each set of sizes by itself: {error}"
        found = self._compile_for({name: (n, n) for name, n in sizes.items()}, sizes)
        if self._refusal:
            found.usual.stages.context.remarks.add(Remark("driver", "missed", self._refusal))
        return found

    @made_for_compiling()
    def _compile_for(self, ranges: Ranges, sizes: Mapping[str, int]) -> Compilation:
        """One program; or two, where a pass would have decided otherwise for small sizes and there are others."""
        lows, highs = ([r[k] for r in ranges.values()] for k in (0, 1))
        usual = self._version(ranges, sizes, FEW if are_small(highs) else MANY)
        two = usual.stages.context.otherwise_if_small and are_small(lows)
        return Compilation(ranges, usual, self._version(ranges, sizes, FEW) if two else None)

    def _version(self, ranges: Ranges, sizes: Mapping[str, int], usual: int) -> Version:
        """A program for all sizes in `ranges`, as fast as may be for those that are `usual`."""
        start = time.perf_counter()
        values = {
            name: low if low == high else open_size(name, low, high, expected(low, high, sizes[name], usual))
            for name, (low, high) in ranges.items()
        }
        graph = self.graph.specialize(values) if values else self.graph
        target = Target.named(self.options.target)
        build = Build(target, cache_of(self.options))
        ahead = Ahead(build)
        stages = run_passes(graph, self.options, [*instruments_for(self.options), ahead], self.scheduler(target))
        scheduled = time.perf_counter()
        executable = Executable(stages.scheduled, target, self.options, build)
        ahead.reserve.release()
        self.seconds["passes"] += scheduled - start - ahead.seconds
        self.seconds["code"] += time.perf_counter() - scheduled + ahead.seconds
        return Version(stages, executable)

    def _around(self, name: str, size: int) -> tuple[int, int]:
        """The range of sizes that share code with `size`."""
        low, high = self.bounds.get(name, (0, 1 << 31))
        return max([low, *(n + 1 for n in SHARED if n < size)]), min([high, *(n for n in SHARED if n >= size)])

    def scheduler(self, target: Target) -> Scheduler:
        """What runs the tile passes: the tuner where the user asks for it and the code can be measured here."""
        if not self.options.tune or target.lacking_here():
            return run_pipeline
        return Tuner(target, cache_of(self.options), Stopwatch(target)).run

    def _admit(self, sizes: Mapping[str, int]) -> None:
        """ArgumentError for a size out of bounds."""
        for name, size in sizes.items():
            low, high = self.bounds.get(name, (size, size))
            if not low <= size <= high:
                raise ArgumentError(f"the size {name} must be in {low}..{high}, but is {size}")

    def sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The value of every symbolic dimension, read off the inputs; ArgumentError where they contradict."""
        return sizes_of(self.graph.inputs, inputs)


def written_back(graph: Graph, inputs: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a call returns: the results that `graph` does not write back to inputs, where the others are copied to."""
    for position, target in graph.aliases.items():
        inputs[target].detach().copy_(results[position])
    return [r for k, r in enumerate(results) if k not in graph.aliases] if graph.aliases else results


def sizes_of(nodes: Sequence[Node], tensors: Sequence[torch.Tensor]) -> dict[str, int]:
    """The sizes for which `tensors` are values of `nodes`; ArgumentError where there are none."""
    if len(tensors) != len(nodes):
        raise ArgumentError(f"expected {len(nodes)} tensors, got {len(tensors)}")
    for node, tensor in zip(nodes, tensors, strict=True):
        if len(node.shape) != tensor.dim():
            raise ArgumentError(f"input {node.name} must have {len(node.shape)} dimensions, but has {tensor.dim()}")
    pairs = [p for n, t in zip(nodes, tensors, strict=True) for p in zip(n.shape, t.shape, strict=True)]
    try:
        return bind_symbols((d, size) for d, size in pairs if isinstance(d, Index))
    except ArgumentError as error:
        given = ", ".join(f"{n.name}: {n.type} is {list(t.shape)}" for n, t in zip(nodes, tensors, strict=True))
        raise ArgumentError(f"{error} ({given})") from None


def make_room(known: dict[Any, Any]) -> None:
    """Forget the oldest of many entries."""
    if len(known) >= KEPT:
        del known[next(iter(known))]
