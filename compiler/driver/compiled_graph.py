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
from compiler.driver.autotune import Tuner
from compiler.errors import ArgumentError, DynamicShapeError, TypeRuleError
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.symbolic.index_atoms import DEFAULT_SIZE_HINT, SMALL_SIZE_HINT, choose_size_hint
from compiler.ir.symbolic.index_expr import IndexExpr, evaluate
from compiler.ir.symbolic.index_expr import dynamic_size as open_size
from compiler.ir.tile.kernel import Kernel, dim_hint
from compiler.ir.tile.program import Program
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import AnyIR, AnyPass, PassInstrument, instruments_for
from compiler.passes.manager import run_pipeline
from compiler.passes.remark import Remark
from compiler.pipeline import Scheduler, Stages, lower_and_schedule
from compiler.runtime.build import Build
from compiler.runtime.call_stub import RunFunction
from compiler.runtime.constants import pack_once
from compiler.runtime.executable import Executable, object_cache_for
from compiler.runtime.kernel_timer import KernelTimer
from compiler.runtime.prefaulted_arena import PrefaultedArena

SIZE_BUCKETS = (4096, 32768)
"""Sizes up to each of these share their code, and so do larger ones: their rows need not fit in local buffers."""

SMALL_SIZE_LIMIT = 128
"""Sizes up to this, in their geometric mean, are served by code of their own where a pass would have decided otherwise for them."""

MAX_CACHED_SIZES = 256
"""Sets of sizes whose memory plans are kept."""

SizeRanges = Mapping[str, tuple[int, int]]

DISPATCHER_TEMPLATE = """def run(inputs):
    try: found = known[({key})]
    except (KeyError, IndexError, AttributeError): found = find(inputs)
    return found(inputs)
"""


GIL_SWITCH_INTERVAL = 0.0005
"""Seconds that the thread of LLVM waits for Python's lock between two of its calls, of which each kernel takes some twenty."""


@contextmanager
def compile_time_gc_settings() -> Iterator[None]:
    """Python hands its lock over soon, and does not look for cycles of dead objects: there are few, and the search takes long."""
    was_on, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(min(GIL_SWITCH_INTERVAL, interval))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_on:
            gc.enable()


class BackgroundCodegen(PassInstrument):
    """Begins with the code of each kernel and with the packing of its constants while passes run on the next."""

    def __init__(self, build: Build) -> None:
        self.build, self.seconds = build, 0.0
        self.arena, self.reserved_bytes = PrefaultedArena(), 0

    def after_pass(self, pass_: AnyPass, old: AnyIR, new: AnyIR, seconds: float, context: Context) -> None:
        if (
            isinstance(new, Graph)
            and (needed := sum(dim_hint(c.type.nbytes) for c in new.constants)) > self.reserved_bytes
        ):
            self.build.submit("packing", self.arena.reserve, needed - self.reserved_bytes)
            self.reserved_bytes = needed

    def kernel_finished(self, kernel: Kernel, program: Program, context: Context) -> None:
        start = time.perf_counter()
        self.build.add(kernel)
        for launch in program.launches:
            if launch.kernel == kernel.name:
                for name, param in zip(launch.arguments, kernel.params, strict=True):
                    if isinstance(data := program.constants.get(name), ConstantData):
                        self.build.submit("packing", pack_once, data, param.type, self.arena)
        self.seconds += time.perf_counter() - start


ExecutedProgram: TypeAlias = tuple[Stages, Executable, Sequence[torch.Tensor]]
"""A program that takes part in a call: its IR, its code, and what it is given."""


@dataclass(frozen=True, eq=False)
class CompiledVariant:
    """One program for all sizes of a compilation, made with some of them in mind."""

    stages: Stages
    executable: Executable

    def for_sizes(self, sizes: Mapping[str, int]) -> Executable:
        """The executable for these sizes."""
        return self.executable.for_sizes(sizes) if self.executable.size_names else self.executable


@dataclass(frozen=True, eq=False)
class Specialization:
    """Code for all sizes in `ranges`, inclusive; that for `small` ones is as right for all, but not as fast."""

    ranges: SizeRanges
    default_variant: CompiledVariant
    small_variant: CompiledVariant | None = None

    def covers(self, sizes: Mapping[str, int]) -> bool:
        """Whether the code is for these sizes."""
        return all(low <= sizes[name] <= high for name, (low, high) in self.ranges.items())

    def select_variant(self, sizes: Mapping[str, int]) -> CompiledVariant:
        """The program that suits these sizes."""
        return self.small_variant if self.small_variant and are_sizes_small(sizes.values()) else self.default_variant


def are_sizes_small(sizes: Collection[int]) -> bool:
    """Whether the geometric mean of these sizes is small: together they count how much is computed."""
    return bool(math.prod(sizes) <= SMALL_SIZE_LIMIT ** len(sizes))


@dataclass(eq=False)
class CompiledGraph:
    """A graph as native code: takes and returns flat lists of tensors.

    A graph with symbolic dimensions is compiled when its first inputs are known: for all sizes in `bounds` that are like them.
    What cannot be compiled so (a remark says why) is compiled for each set of sizes by itself.
    Results that are written back to inputs (`graph.aliases`) are copied there and left out of what is returned.
    """

    graph: Graph
    options: Options = field(default_factory=Options)
    bounds: SizeRanges = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=lambda: {"passes": 0.0, "code": 0.0})
    specializations: list[Specialization] = field(default_factory=list)
    _dynamic_failure: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.symbols = tuple(sorted(self.graph.symbols))
        self._dynamic_inputs = [
            k for k, node in enumerate(self.graph.inputs) if any(isinstance(d, IndexExpr) for d in node.shape)
        ]
        single = (n for n in self.graph.nodes if not isinstance(n.result_type, tuple))
        self._symbolic_dims = {d for n in single for d in n.shape if isinstance(d, IndexExpr)}
        self._executables: dict[tuple[int | None, ...], tuple[Stages, Executable]] = {}
        self._dispatch_cache: dict[tuple[tuple[int, ...], ...], RunFunction] = {}
        self.run: RunFunction
        self.run = self._make_dispatcher() if self.symbols else self.executable_for({})[1].run

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return write_back_aliases(self.graph, inputs, self.run(inputs))

    def call_with_sizes(
        self, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """What a call returns, and how to get the sizes that inputs have told."""
        return self(inputs), lambda: self.input_sizes(inputs)

    def executed_programs(self, inputs: Sequence[torch.Tensor]) -> list[ExecutedProgram]:
        """What serves these inputs: the one program, and what it is given."""
        return [(*self.executable_for(self.input_sizes(inputs)), inputs)]

    def _make_dispatcher(self) -> RunFunction:
        """What runs the executable for the shapes of its inputs, written for this graph: one that is known is found at once."""
        key = "".join(f"inputs[{k}].shape, " for k in self._dynamic_inputs)
        space: dict[str, Any] = {"known": self._dispatch_cache, "find": self._resolve_dispatch}
        exec(compile(DISPATCHER_TEMPLATE.format(key=key), "<tilewright lookup>", "exec"), space)
        run: RunFunction = space["run"]
        return run

    def _resolve_dispatch(self, inputs: Sequence[torch.Tensor]) -> RunFunction:
        """The function for these inputs, which is known from then on; or one that says what is wrong with them."""
        _, executable = self.executable_for(self.input_sizes(inputs))
        names = [executable.program.inputs[k] for k in self._dynamic_inputs]
        shapes = tuple(tuple(inputs[k].shape) for k in self._dynamic_inputs)
        if not executable.accepts_shapes(dict(zip(names, shapes, strict=True))):
            return executable.run
        with self._lock:
            evict_oldest(self._dispatch_cache)
            run = self._dispatch_cache[shapes] = executable.without_shape_checks(names)
        return run

    def executable_for(self, sizes: Mapping[str, int]) -> tuple[Stages, Executable]:
        """The executable for these sizes; code is made where none that is here serves them, and of many the oldest is forgotten."""
        key = tuple(map(sizes.get, self.symbols))
        with self._lock:
            if key not in self._executables:
                self._check_empty_dims(sizes)
                version = self._specialization_for(sizes).select_variant(sizes)
                evict_oldest(self._executables)
                self._executables[key] = version.stages, version.for_sizes(sizes)
            return self._executables[key]

    def _check_empty_dims(self, sizes: Mapping[str, int]) -> None:
        """ArgumentError where these sizes leave nothing of a value and an op does not take that: a window that does not fit."""
        if all(evaluate(d, sizes) > 0 for d in self._symbolic_dims):
            return
        try:
            self.graph.specialize(sizes)
        except TypeRuleError as error:
            given = ", ".join(f"{name} = {n}" for name, n in sorted(sizes.items()))
            raise ArgumentError(f"these sizes do not fit ({given}): {error}") from error

    def _specialization_for(self, sizes: Mapping[str, int]) -> Specialization:
        """The compilation that serves these sizes; ArgumentError for a size out of bounds."""
        found = next((c for c in self.specializations if c.covers(sizes)), None)
        if found is None:
            self._check_bounds(sizes)
            found = self._specialize(sizes)
            self.specializations.append(found)
        return found

    def _specialize(self, sizes: Mapping[str, int]) -> Specialization:
        """Code for these sizes and all that are like them, if it can be made, else for these alone."""
        if sizes and not self._dynamic_failure:
            try:
                return self._compile_ranges({name: self._bucket_of(name, n) for name, n in sizes.items()}, sizes)
            except DynamicShapeError as error:
                self._dynamic_failure = f"compiled for each set of sizes by itself: {error}"
        found = self._compile_ranges({name: (n, n) for name, n in sizes.items()}, sizes)
        if self._dynamic_failure:
            found.default_variant.stages.context.remarks.add(Remark("driver", "missed", self._dynamic_failure))
        return found

    @compile_time_gc_settings()
    def _compile_ranges(self, ranges: SizeRanges, sizes: Mapping[str, int]) -> Specialization:
        """One program; or two, where a pass would have decided otherwise for small sizes and there are others."""
        lows, highs = ([r[k] for r in ranges.values()] for k in (0, 1))
        usual = self._compile_variant(ranges, sizes, SMALL_SIZE_HINT if are_sizes_small(highs) else DEFAULT_SIZE_HINT)
        two = usual.stages.context.wants_small_variant and are_sizes_small(lows)
        return Specialization(ranges, usual, self._compile_variant(ranges, sizes, SMALL_SIZE_HINT) if two else None)

    def _compile_variant(self, ranges: SizeRanges, sizes: Mapping[str, int], size_hint: int) -> CompiledVariant:
        """A program for all sizes in `ranges`, as fast as may be for those that are `usual`."""
        start = time.perf_counter()
        values = {
            name: low
            if low == high
            else open_size(name, low, high, choose_size_hint(low, high, sizes[name], size_hint))
            for name, (low, high) in ranges.items()
        }
        graph = self.graph.specialize(values) if values else self.graph
        target = Target.by_name(self.options.target)
        build = Build(target, object_cache_for(self.options))
        ahead = BackgroundCodegen(build)
        stages = lower_and_schedule(
            graph, self.options, [*instruments_for(self.options), ahead], self.scheduler(target)
        )
        scheduled = time.perf_counter()
        executable = Executable(stages.scheduled, target, self.options, build)
        ahead.arena.trim()
        self.compile_seconds["passes"] += scheduled - start - ahead.seconds
        self.compile_seconds["code"] += time.perf_counter() - scheduled + ahead.seconds
        return CompiledVariant(stages, executable)

    def _bucket_of(self, name: str, size: int) -> tuple[int, int]:
        """The range of sizes that share code with `size`."""
        low, high = self.bounds.get(name, (0, 1 << 31))
        return max([low, *(n + 1 for n in SIZE_BUCKETS if n < size)]), min(
            [high, *(n for n in SIZE_BUCKETS if n >= size)]
        )

    def scheduler(self, target: Target) -> Scheduler:
        """What runs the tile passes: the tuner where the user asks for it and the code can be measured here."""
        if not self.options.tune or target.missing_host_features():
            return run_pipeline
        return Tuner(target, object_cache_for(self.options), KernelTimer(target)).run

    def _check_bounds(self, sizes: Mapping[str, int]) -> None:
        """ArgumentError for a size out of bounds."""
        for name, size in sizes.items():
            low, high = self.bounds.get(name, (size, size))
            if not low <= size <= high:
                raise ArgumentError(f"the size {name} must be in {low}..{high}, but is {size}")

    def input_sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The value of every symbolic dimension, read off the inputs; ArgumentError where they contradict."""
        return infer_sizes(self.graph.inputs, inputs)


def write_back_aliases(graph: Graph, inputs: Sequence[torch.Tensor], results: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a call returns: the results that `graph` does not write back to inputs, where the others are copied to."""
    for position, target in graph.output_aliases.items():
        inputs[target].detach().copy_(results[position])
    return [r for k, r in enumerate(results) if k not in graph.output_aliases] if graph.output_aliases else results


def infer_sizes(nodes: Sequence[Node], tensors: Sequence[torch.Tensor]) -> dict[str, int]:
    """The sizes for which `tensors` are values of `nodes`; ArgumentError where there are none."""
    if len(tensors) != len(nodes):
        raise ArgumentError(f"expected {len(nodes)} tensors, got {len(tensors)}")
    for node, tensor in zip(nodes, tensors, strict=True):
        if len(node.shape) != tensor.dim():
            raise ArgumentError(f"input {node.name} must have {len(node.shape)} dimensions, but has {tensor.dim()}")
    pairs = [p for n, t in zip(nodes, tensors, strict=True) for p in zip(n.shape, t.shape, strict=True)]
    try:
        return bind_symbols((d, size) for d, size in pairs if isinstance(d, IndexExpr))
    except ArgumentError as error:
        given = ", ".join(f"{n.name}: {n.type} is {list(t.shape)}" for n, t in zip(nodes, tensors, strict=True))
        raise ArgumentError(f"{error} ({given})") from None


def evict_oldest(cache: dict[Any, Any]) -> None:
    """Forget the oldest of many entries."""
    if len(cache) >= MAX_CACHED_SIZES:
        del cache[next(iter(cache))]
