"""Dead code elimination.  Nodes that no output reaches are in no graph; what can be dead is a part of a fused node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.graph import Graph, Node
from compiler.ir.structure import Fused, Item
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class DCE(GraphPass):
    """Take results nobody reads, and operands nobody needs, out of fused nodes.  Inputs of the graph stay.

    %f = fused (%x, %z) { %a = exp %x0  %b = neg %x1  return %a, %b }   %y = item %f {index=0}
    ->   %y = fused (%x) { %a = exp %x0  return %a }
    """

    name = "dce"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        fused = [n for n in ir.nodes if isinstance(n.structure, Fused)]
        pruned = {n: smaller for n in fused if (smaller := _prune(n, _results_read(ir, n))) is not None}
        if not pruned:
            return ir
        context.count(self, "pruned", len(pruned))

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if n in pruned:
                body, kept = pruned[n]
                return replace(n.op(*(operands[k] for k in kept), loc=n.loc, body=body), name=n.name)
            source = n.operands[0] if isinstance(n.structure, Item) else None
            if source not in pruned:
                return n.with_operands(operands)
            assert source is not None
            if not isinstance(operands[0].result, tuple):
                return operands[0]
            index = _results_read(ir, source).index(n.attrs["index"])
            return replace(n.op(operands[0], loc=n.loc, index=index), name=n.name)

        return ir.rebuild(rule)


def _results_read(ir: Graph, n: Node) -> list[int]:
    """The numbers of the results of `n` that some item reads."""
    if not isinstance(n.result, tuple):
        return [0]
    return sorted({user.attrs["index"] for user in ir.users[n]})


def _prune(n: Node, read: list[int]) -> tuple[Graph, list[int]] | None:
    """The body with only the results that are read, and the numbers of the operands it still needs; None for no change."""
    body: Graph = n.attrs["body"]
    smaller = replace(body, inputs=(), outputs=tuple(body.outputs[k] for k in read))
    kept = [k for k, x in enumerate(body.inputs) if x in smaller.nodes]
    if len(read) == len(body.outputs) and len(kept) == len(body.inputs):
        return None
    return replace(smaller, inputs=tuple(body.inputs[k] for k in kept)), kept
