"""Graphs in which data decides sizes, or what is run, compiled in parts: each when the sizes before it are known for the first time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, Union

import torch

from compiler.driver.compiled_graph import CompiledGraph, ExecutedProgram, write_back_aliases
from compiler.driver.variant import SizeRanges
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.partition import needs_partitioning, partition
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.interpret.partition_executor import PartitionExecutor
from compiler.options import Options
from compiler.runtime.call_stub import RunFunction


@dataclass(eq=False)
class PartitionedGraph:
    """A graph as native code in several parts, with calls into PyTorch between them; called as `CompiledGraph` is.

    ArgumentError where sizes that data tells are out of `bounds` or break one of `conditions`.
    """

    graph: Graph
    options: Options = field(default_factory=Options)
    bounds: SizeRanges = field(default_factory=dict)
    assertions: tuple[RuntimeAssertion, ...] = ()

    def __post_init__(self) -> None:
        self.subgraphs = partition(self.graph)
        self.compiled_subgraphs = tuple(CompiledGraph(p.graph, self.options, self.bounds) for p in self.subgraphs)
        compiled_bodies = (
            v for p in self.subgraphs for n in p.eager_calls for v in n.attrs.values() if isinstance(v, Graph)
        )
        self.bodies = {g: compile_graph(g, self.options, self.bounds, self.assertions) for g in compiled_bodies}
        self._executor = self._make_executor(lambda compiled: compiled.run)

    def _make_executor(self, function: Callable[[AnyCompiled], RunFunction]) -> PartitionExecutor:
        """The graph with `function` of what each part, and each graph that a call carries, was compiled to."""
        compute = tuple(map(function, self.compiled_subgraphs))
        return PartitionExecutor(
            self.graph, self.subgraphs, compute, lambda g: function(self.bodies[g]), self.assertions
        )

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.call_with_sizes(inputs)[0]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs, those that are to be written back to inputs among them."""
        return self._executor(inputs)[0]

    def call_with_sizes(
        self, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """What a call returns, and how to get the sizes that inputs and data have told."""
        results, sizes = self._executor(inputs)
        return write_back_aliases(self.graph, inputs, results), lambda: sizes

    @property
    def compile_seconds(self) -> dict[str, float]:
        """What compiling the parts has taken together."""
        return {
            k: sum(c.compile_seconds[k] for c in (*self.compiled_subgraphs, *self.bodies.values()))
            for k in ("passes", "code")
        }

    def executed_programs(self, inputs: Sequence[torch.Tensor]) -> list[ExecutedProgram]:
        """The parts that serve these inputs and what they are given; all of it runs, but nothing is written back."""
        found: list[ExecutedProgram] = []

        def noted(compiled: AnyCompiled) -> RunFunction:
            def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
                found.extend(compiled.executed_programs(tensors))
                return compiled.run(tensors)

            return run

        self._make_executor(noted)(inputs)
        return found


AnyCompiled: TypeAlias = Union[CompiledGraph, PartitionedGraph]


def compile_graph(
    graph: Graph,
    options: Options | None = None,
    bounds: SizeRanges | None = None,
    assertions: Sequence[RuntimeAssertion] = (),
) -> AnyCompiled:
    """Compile `graph`; what is static at once, the rest when its first sizes are known."""
    if needs_partitioning(graph):
        return PartitionedGraph(graph, options or Options(), bounds or {}, tuple(assertions))
    return CompiledGraph(graph, options or Options(), bounds or {})
