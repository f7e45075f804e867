"""Graphs in which data decides sizes, or what is run, compiled in parts: each when the sizes before it are known for the first time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, Union

import torch

from compiler.driver import CompiledGraph, Ranges, Served, written_back
from compiler.ir.graph import Graph
from compiler.ir.partition import is_partitioned, partition
from compiler.ir.parts import Condition, Parts
from compiler.options import Options
from compiler.runtime.entry import Run


@dataclass(eq=False)
class PartitionedGraph:
    """A graph as native code in several parts, with calls into PyTorch between them; called as `CompiledGraph` is.

    ArgumentError where sizes that data tells are out of `bounds` or break one of `conditions`.
    """

    graph: Graph
    options: Options = field(default_factory=Options)
    bounds: Ranges = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        self.parts = partition(self.graph)
        self.compiled = tuple(CompiledGraph(p.graph, self.options, self.bounds) for p in self.parts)
        bodies = (v for p in self.parts for n in p.calls for v in n.attrs.values() if isinstance(v, Graph))
        self.bodies = {g: compile_graph(g, self.options, self.bounds, self.conditions) for g in bodies}
        self._run = self._parts(lambda compiled: compiled.run)

    def _parts(self, function: Callable[[AnyCompiled], Run]) -> Parts:
        """The graph with `function` of what each part, and each graph that a call carries, was compiled to."""
        compute = tuple(map(function, self.compiled))
        return Parts(self.graph, self.parts, compute, lambda g: function(self.bodies[g]), self.conditions)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.measured(inputs)[0]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, those that are to be written back to inputs among them."""
        return self._run(inputs)[0]

    def measured(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """What a call returns, and how to get the sizes that inputs and data have told."""
        results, sizes = self._run(inputs)
        return written_back(self.graph, inputs, results), lambda: sizes

    @property
    def seconds(self) -> dict[str, float]:
        """What compiling the parts has taken together."""
        return {k: sum(c.seconds[k] for c in (*self.compiled, *self.bodies.values())) for k in ("passes", "code")}

    def programs(self, inputs: Sequence[torch.Tensor]) -> list[Served]:
        """The parts that serve these inputs and what they are given; all of it runs, but nothing is written back."""
        found: list[Served] = []

        def noted(compiled: AnyCompiled) -> Run:
            def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
                found.extend(compiled.programs(tensors))
                return compiled.run(tensors)

            return run

        self._parts(noted)(inputs)
        return found


AnyCompiled: TypeAlias = Union[CompiledGraph, PartitionedGraph]


def compile_graph(
    graph: Graph, options: Options | None = None, bounds: Ranges | None = None, conditions: Sequence[Condition] = ()
) -> AnyCompiled:
    """Compile `graph`; what is static at once, the rest when its first sizes are known."""
    if is_partitioned(graph):
        return PartitionedGraph(graph, options or Options(), bounds or {}, tuple(conditions))
    return CompiledGraph(graph, options or Options(), bounds or {})
