"""Graphs with data-dependent sizes or control flow: subgraphs compiled by themselves, with calls into PyTorch between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import torch

from compiler.codegen.backend import target_by_name
from compiler.driver.compiled_graph import CompiledGraph, ExecutedProgram, write_back_aliases
from compiler.driver.variant import SizeRanges
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.partition import needs_partitioning, partition
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.interpret.partition_executor import PartitionExecutor
from compiler.options import Options
from compiler.runtime.arguments import argument_device, check_argument
from compiler.runtime.call_stub import RunFunction
from compiler.runtime.eager_calls import EagerFunction, eager_function


@dataclass(eq=False)
class PartitionedGraph:
    """A graph as several subgraphs of native code, with calls into PyTorch between them; called as `CompiledGraph` is.

    ArgumentError where data-dependent sizes are out of `bounds` or break one of `assertions`.
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
        read_by_pytorch = {o for p in self.subgraphs for n in p.eager_calls for o in n.operands}
        self._unchecked_inputs = tuple((k, n) for k, n in enumerate(self.graph.inputs) if n in read_by_pytorch)
        self._executor = self._make_executor(lambda compiled: compiled.run)

    def _make_executor(self, function: Callable[[AnyCompiled], RunFunction]) -> PartitionExecutor:
        """Return an executor that calls `function` of each compiled subgraph, and of each graph that an eager call carries."""

        def bind_call(n: Node, attrs: Mapping[str, Any]) -> EagerFunction:
            bound = {k: function(self.bodies[v]) if isinstance(v, Graph) else v for k, v in attrs.items()}
            return eager_function(n, bound, self.graph.users[n])

        compute = tuple(map(function, self.compiled_subgraphs))
        return PartitionExecutor(self.graph, self.subgraphs, compute, bind_call, self.assertions)

    def _execute(
        self, executor: PartitionExecutor, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, int]]:
        """Run `executor`; ArgumentError for an input that only PyTorch reads, and compiled code would refuse."""
        if len(inputs) == len(self.graph.inputs) and self._unchecked_inputs:
            device = argument_device(inputs, target_by_name(self.options.target).device_type)
            for k, n in self._unchecked_inputs:
                check_argument(k, n.name, inputs[k], n.type, device)
        return executor(inputs)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.call_with_sizes(inputs)[0]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return all outputs, those that alias inputs among them."""
        return self._execute(self._executor, inputs)[0]

    def call_with_sizes(
        self, inputs: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Callable[[], Mapping[str, int]]]:
        """Return the results of a call, and a function that gives its sizes, data-dependent ones included."""
        results, sizes = self._execute(self._executor, inputs)
        return write_back_aliases(self.graph, inputs, results), lambda: sizes

    @property
    def last_sizes(self) -> dict[str, int]:
        """Sizes that the subgraphs served for the first time last."""
        return {name: size for c in self.compiled_subgraphs for name, size in c.last_sizes.items()}

    @property
    def compile_seconds(self) -> dict[str, float]:
        """Seconds spent on all subgraphs together."""
        return {
            k: sum(c.compile_seconds[k] for c in (*self.compiled_subgraphs, *self.bodies.values()))
            for k in ("passes", "code")
        }

    def executed_programs(self, inputs: Sequence[torch.Tensor]) -> list[ExecutedProgram]:
        """Return the programs that serve these inputs; runs all of them, but writes nothing back."""
        programs: list[ExecutedProgram] = []

        def recorded(compiled: AnyCompiled) -> RunFunction:
            def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
                programs.extend(compiled.executed_programs(tensors))
                return compiled.run(tensors)

            return run

        self._execute(self._make_executor(recorded), inputs)
        return programs


AnyCompiled: TypeAlias = Union[CompiledGraph, PartitionedGraph]


def compile_graph(
    graph: Graph,
    options: Options | None = None,
    bounds: SizeRanges | None = None,
    assertions: Sequence[RuntimeAssertion] = (),
) -> AnyCompiled:
    """Compile `graph`: static subgraphs at once, the others when their first sizes are known."""
    if needs_partitioning(graph):
        return PartitionedGraph(graph, options or Options(), bounds or {}, tuple(assertions))
    return CompiledGraph(graph, options or Options(), bounds or {})
