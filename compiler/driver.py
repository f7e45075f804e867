"""From a graph to something that can be called: passes, code, and one executable per set of sizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from compiler.codegen.target import Target
from compiler.errors import ArgumentError
from compiler.ir.graph import Graph
from compiler.ir.index import Index, coefficient, evaluate, substitute, variables
from compiler.options import Options
from compiler.passes.instrument import instruments_for
from compiler.passes.manager import run_pipeline
from compiler.pipeline import Scheduler, Stages, run_passes
from compiler.runtime.executable import Executable, cache_of
from compiler.runtime.stopwatch import Stopwatch
from compiler.tuning import Tuner


@dataclass(eq=False)
class CompiledGraph:
    """A graph as native code: takes and returns flat lists of tensors.

    A graph with symbolic dimensions is specialised for each set of sizes it meets, and kept.  Results that are written
    back to inputs (`graph.aliases`) are copied there and left out of what is returned.
    """

    graph: Graph
    options: Options
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"passes": 0.0, "code": 0.0})
    _built: dict[tuple[tuple[str, int], ...], tuple[Stages, Executable]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.symbols = tuple(sorted(self.graph.symbols))
        self.returned = tuple(k for k in range(len(self.graph.outputs)) if k not in self.graph.aliases)
        self._call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] | None = None
        if not self.symbols:
            executable = self.build({})[1]
            if not self.graph.aliases:
                self._call = executable

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._call is not None:
            return self._call(inputs)
        _, executable = self.build(self.sizes(inputs))
        results = executable(inputs)
        for position, target in self.graph.aliases.items():
            inputs[target].detach().copy_(results[position])
        return [results[k] for k in self.returned]

    def build(self, sizes: Mapping[str, int]) -> tuple[Stages, Executable]:
        """The executable for these sizes, compiled when first asked for."""
        key = tuple(sorted(sizes.items()))
        with self._lock:
            if key not in self._built:
                self._admit(sizes)
                start = time.perf_counter()
                graph = self.graph.specialize(sizes) if sizes else self.graph
                target = Target.named(self.options.target)
                stages = run_passes(graph, self.options, instruments_for(self.options), self.scheduler(target))
                scheduled = time.perf_counter()
                executable = Executable(stages.scheduled, target, self.options)
                self._built[key] = (stages, executable)
                self.seconds["passes"] += scheduled - start
                self.seconds["code"] += time.perf_counter() - scheduled
            return self._built[key]

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
        found: dict[str, int] = {}
        if len(inputs) != len(self.graph.inputs):
            raise ArgumentError(f"expected {len(self.graph.inputs)} tensors, got {len(inputs)}")
        pending = [
            (node.name, dim, size)
            for node, tensor in zip(self.graph.inputs, inputs, strict=True)
            for dim, size in zip(node.shape, tensor.shape, strict=True)
            if isinstance(dim, Index)
        ]
        for name, dim, size in sorted(pending, key=lambda p: len(variables(p[1]))):
            known = substitute(dim, found)
            if isinstance(known, int):
                if known != size:
                    raise ArgumentError(f"input {name}: dimension {dim} must be {known}, got {size}")
                continue
            (symbol,) = variables(known)
            step = coefficient(known, symbol)
            base = evaluate(substitute(known, {symbol: 0}), {})
            if not step or (size - base) % step:
                raise ArgumentError(f"input {name}: a dimension of {size} is not of the form {dim}")
            found[symbol] = (size - base) // step
        return found

    @property
    def executables(self) -> tuple[tuple[Stages, Executable], ...]:
        """Every specialisation so far."""
        return tuple(self._built.values())


def compile_graph(graph: Graph, options: Options | None = None) -> CompiledGraph:
    """Compile `graph`; static graphs at once, symbolic ones when their sizes are known."""
    return CompiledGraph(graph, options or Options())
