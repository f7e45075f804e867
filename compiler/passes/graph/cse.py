"""Common subexpression elimination: compute the same op on the same operands once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from compiler.analysis.structural_key import node_key
from compiler.ir.graph.constant import ConstantData, LazyConstant
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import Opaque, TupleGet
from compiler.passes.base import Context, GraphPass, register

MAX_COMPARED_BYTES = 4096
"""Constants up to this many bytes are compared by content, larger ones by address; chosen empirically."""


@register
@dataclass(frozen=True)
class CSE(GraphPass):
    """Merge equal nodes.

    %a = exp %x   %b = exp %x   %c = add %a, %b   ->   %a = exp %x   %c = add %a, %a

    Opaque nodes are never merged: two calls may give different values.
    """

    name = "cse"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        unique_nodes: dict[Hashable, Node] = {}

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            new = n.with_operands(operands)
            if n.op is INPUT or isinstance(n.structure, (Opaque, TupleGet)):
                return new
            unique = unique_nodes.setdefault(_value_key(new), new)
            if unique is new or not context.may_apply(self, f"merged with {unique.op.name}", n, remark=False):
                return new
            context.count(self, "merged")
            return unique

        rebuilt = ir.map_nodes(rule, context.reached)
        return rebuilt if len(rebuilt.nodes) < len(ir.nodes) else ir


def _value_key(n: Node) -> Hashable:
    """Return a key that is equal for nodes that compute the same value."""
    if n.op is CONSTANT:
        return _data_key(n.attrs["value"])
    return node_key(n), n.operands


def _data_key(data: ConstantData) -> Hashable:
    if isinstance(data, LazyConstant):
        return "constant", data
    array = data.array
    content = array.tobytes() if array.nbytes <= MAX_COMPARED_BYTES else array.__array_interface__["data"][0]
    return "constant", data.dtype.name, array.shape, array.strides if array.nbytes > MAX_COMPARED_BYTES else (), content
