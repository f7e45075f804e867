"""Import of the control-flow operators `torch.cond`, `while_loop`, `scan` and `map`, which call subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeAlias

import torch

from compiler.frontend.promotion import as_node
from compiler.frontend.registry import ConversionError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.partition import needs_partitioning
from compiler.ir.types import boolean

Modules: TypeAlias = Sequence[torch.fx.GraphModule]


class SubgraphImporter(Protocol):
    def __call__(
        self, modules: Modules, arguments: Sequence[Any], scanned: Collection[int] = (), invariant: Collection[int] = ()
    ) -> tuple[list[Graph], tuple[Node, ...]]:
        """Import `modules`, which take the same arguments; return their graphs and the operands of these graphs.

        `scanned` holds the positions of arguments read one entry per step along dimension 0.
        `invariant` holds those that never change; constants among them are inlined into the graphs.
        """
        ...


def cond(
    import_subgraphs: SubgraphImporter, predicate: Any, true_graph: Any, false_graph: Any, operands: Sequence[Any] = ()
) -> tuple[Node, ...]:
    """Convert to an op; a predicate on sizes or numbers becomes a tensor of rank 0, so that a call chooses by its sizes."""
    if not isinstance(predicate, Node):
        predicate = as_node(predicate, boolean)
    graphs, taken = import_subgraphs((true_graph, false_graph), operands, invariant=range(len(operands)))
    return ops.result_nodes(ops.cond(predicate, *taken, true_graph=graphs[0], false_graph=graphs[1]))


def while_loop(
    import_subgraphs: SubgraphImporter,
    condition: Any,
    body: Any,
    carried: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> tuple[Node, ...]:
    _require_tensors(carried, "carried")
    arguments = (*carried, *additional_inputs)
    graphs, taken = import_subgraphs((condition, body), arguments, invariant=range(len(carried), len(arguments)))
    return ops.result_nodes(ops.while_loop(*taken, condition=graphs[0], body=graphs[1], carried=len(carried)))


def scan(
    import_subgraphs: SubgraphImporter,
    combine: Any,
    initial: Sequence[Any],
    sequences: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> tuple[Node, ...]:
    """Convert to a recurrence, whose body takes scanned before carried operands; PyTorch's takes carried ones first."""
    _require_tensors((*initial, *sequences), "carried and scanned")
    first, last = len(initial), len(initial) + len(sequences)
    (body,), taken = import_subgraphs(
        (combine,), (*initial, *sequences, *additional_inputs), scanned=range(first, last)
    )
    if needs_partitioning(body):
        raise ConversionError("the loop body has data-dependent sizes or control flow")

    def sequences_first(values: tuple[Node, ...]) -> tuple[Node, ...]:
        return values[first:last] + values[:first] + values[last:]

    body = Graph(sequences_first(body.inputs), body.outputs, body.name)
    return ops.result_nodes(
        ops.recurrence(*sequences_first(taken), body=body, num_scanned=len(sequences), num_carried=len(initial))
    )


def map_(
    import_subgraphs: SubgraphImporter, function: Any, sequences: Sequence[Any], additional_inputs: Sequence[Any] = ()
) -> tuple[Node, ...]:
    return scan(import_subgraphs, function, (), sequences, additional_inputs)


CONTROL_FLOW_OPERATORS: dict[str, Callable[..., tuple[Node, ...]]] = {
    "cond": cond, "while_loop": while_loop, "scan": scan, "map_impl": map_,
}  # fmt: skip


def _require_tensors(values: Sequence[Any], role: str) -> None:
    if not all(isinstance(v, Node) for v in values):
        raise ConversionError(f"all {role} values of a loop must be tensors")
