"""Graphs inside graphs: `torch.cond`, `while_loop`, `scan` and `map`, as export and Dynamo hand them on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from compiler.frontend.registry import ConversionError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.partition import needs_partitioning

Modules: TypeAlias = Sequence[torch.fx.GraphModule]


class SubgraphImporter(Protocol):
    def __call__(
        self, modules: Modules, arguments: Sequence[Any], scanned: Collection[int] = (), invariant: Collection[int] = ()
    ) -> tuple[list[Graph], tuple[Node, ...]]:
        """The graphs of modules that take the same arguments, and what these graphs take.

        Arguments are given by their numbers: `entries` go in entry by entry, and `fixed` ones are seen through where they are
        constants.
        """
        ...


def cond(
    import_subgraphs: SubgraphImporter, predicate: Any, true_graph: Any, false_graph: Any, operands: Sequence[Any] = ()
) -> tuple[Node, ...]:
    if not isinstance(predicate, Node):
        raise ConversionError("what decides is no tensor")
    graphs, taken = import_subgraphs((true_graph, false_graph), operands, invariant=range(len(operands)))
    return ops.result_nodes(ops.cond(predicate, *taken, then=graphs[0], otherwise=graphs[1]))


def while_loop(
    import_subgraphs: SubgraphImporter,
    condition: Any,
    body: Any,
    carried: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> tuple[Node, ...]:
    _require_tensors(carried, "carries")
    arguments = (*carried, *additional_inputs)
    graphs, taken = import_subgraphs((condition, body), arguments, invariant=range(len(carried), len(arguments)))
    return ops.result_nodes(ops.while_loop(*taken, test=graphs[0], body=graphs[1], states=len(carried)))


def scan(
    import_subgraphs: SubgraphImporter,
    combine: Any,
    initial: Sequence[Any],
    sequences: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> tuple[Node, ...]:
    """The module takes states, entries and what stays; a recurrence has the entries first."""
    _require_tensors((*initial, *sequences), "carries or reads step by step")
    first, last = len(initial), len(initial) + len(sequences)
    (body,), taken = import_subgraphs(
        (combine,), (*initial, *sequences, *additional_inputs), scanned=range(first, last)
    )
    if needs_partitioning(body):
        raise ConversionError("data decides sizes, or what is run, inside the loop")

    def sequences_first(values: tuple[Node, ...]) -> tuple[Node, ...]:
        return values[first:last] + values[:first] + values[last:]

    body = Graph(sequences_first(body.inputs), body.outputs, body.name)
    return ops.result_nodes(
        ops.recurrence(*sequences_first(taken), body=body, sequences=len(sequences), states=len(initial))
    )


def map_(
    import_subgraphs: SubgraphImporter, function: Any, sequences: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> tuple[Node, ...]:
    return scan(import_subgraphs, function, (), sequences, additional_inputs)


CONTROL_FLOW_OPERATORS: dict[str, Callable[..., tuple[Node, ...]]] = {
    "cond": cond, "while_loop": while_loop, "scan": scan, "map_impl": map_,
}  # fmt: skip


def _require_tensors(values: Sequence[Any], what: str) -> None:
    if not all(isinstance(v, Node) for v in values):
        raise ConversionError(f"what the loop {what} is not all tensors")
