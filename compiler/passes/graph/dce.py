"""Dead code elimination inside nodes with a body.  Nodes themselves are never dead: graphs hold what outputs reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Fused, Recurrence, TupleGet
from compiler.passes.base import Context, GraphPass, register


@dataclass(frozen=True)
class Pruned:
    """New attributes of a node, and the numbers of its live operands and results."""

    attrs: Mapping[str, Any]
    operands: list[int]
    results: list[int]


@register
@dataclass(frozen=True)
class DCE(GraphPass):
    """Remove unread results and unneeded operands of fused nodes and recurrences.

    %f = fused (%x, %z) { %a = exp %x0  %b = neg %x1  return %a, %b }   %y = tuple_get %f {index=0}
    ->   %y = fused (%x) { %a = exp %x0  return %a }

    Inputs of the graph stay.
    """

    name = "dce"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        prunable = ((n, smaller) for n in ir.nodes if (smaller := _prune(n, ir)) is not None)
        pruned = {n: p for n, p in prunable if context.may_apply(self, "unread results dropped", n, remark=False)}
        if not pruned:
            return ir
        context.count(self, "pruned", len(pruned))

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if n in pruned:
                p = pruned[n]
                return replace(n.op(*(operands[k] for k in p.operands), loc=n.loc, **p.attrs), name=n.name)
            source = n.operands[0] if isinstance(n.structure, TupleGet) else None
            if source not in pruned:
                return n.with_operands(operands)
            assert source is not None
            if not isinstance(operands[0].result_type, tuple):
                return operands[0]
            index = pruned[source].results.index(n.attrs["index"])
            return replace(n.op(operands[0], loc=n.loc, index=index), name=n.name)

        return ir.map_nodes(rule)


def _prune(n: Node, ir: Graph) -> Pruned | None:
    """Return `n` with only the results that are read and the operands they need; None for no change.

    A recurrence keeps all its states, and one sequence for its trip count.
    """
    if not isinstance(n.structure, (Fused, Recurrence)):
        return None
    body: Graph = n.attrs["body"]
    sequences, states = (
        (n.attrs["num_scanned"], n.attrs["num_carried"]) if isinstance(n.structure, Recurrence) else (0, 0)
    )
    read = {user.attrs["index"] for user in ir.users[n]} if isinstance(n.result_type, tuple) else {0}
    results = sorted(read | set(range(states)))
    smaller = replace(body, inputs=(), outputs=tuple(body.outputs[k] for k in results))
    carried = range(sequences, sequences + states)
    operands = [k for k, x in enumerate(body.inputs) if k in carried or x in smaller.nodes]
    if sequences and not any(k < sequences for k in operands):
        operands.insert(0, 0)
    if len(results) == len(body.outputs) and len(operands) == len(body.inputs):
        return None
    attrs = {**n.attrs, "body": replace(smaller, inputs=tuple(body.inputs[k] for k in operands))}
    if sequences:
        attrs["num_scanned"] = sum(k < sequences for k in operands)
    return Pruned(attrs, operands, results)
