"""Constant linear maps in a group of nodes: they take several elements of an operand at once, as loops of reductions do not."""

from __future__ import annotations

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import ConstantLinear, Reduction


def mixes_linear_with_reductions(graph: Graph) -> bool:
    """Return True if a constant linear map depends on a reduction, or vice versa."""
    needs: dict[Node, set[type]] = {}
    for n in graph.nodes:
        own = {type(n.structure)} & {ConstantLinear, Reduction}
        inherited = {k for o in n.operands for k in needs.get(o, ())}
        if own and inherited - own:
            return True
        needs[n] = own | inherited
    return False
