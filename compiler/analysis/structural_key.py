"""Structural keys: what a node computes from its operands, and what a graph, or a group of nodes in one, computes from its inputs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from compiler.ir.graph.graph import Graph, preorder
from compiler.ir.graph.node import Node


def structural_key(graph: Graph) -> Hashable:
    """Return a hashable key of ops, operands, types and attributes: graphs with equal keys lower to the same kernel."""
    order = preorder(graph.outputs, set(graph.nodes).difference(graph.inputs))
    return group_key(order, graph.inputs, graph.outputs)


def group_key(order: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]) -> Hashable:
    """Return the structural key of the graph from `inputs` to `outputs`, whose nodes are met in `order` from the outputs."""
    number = {n: k for k, n in enumerate(order)}
    boundary = set(inputs)
    nodes = [() if n in boundary else (node_key(n), *[number[o] for o in n.operands]) for n in order]
    return *nodes, *[(number.get(n), n.result_type) for n in inputs], *[number[n] for n in outputs]


def node_key(n: Node) -> Hashable:
    """Return a key of op, attributes and result type, computed once; attributes `name` are ignored."""
    known: Hashable = n.__dict__.get("_structural_key")
    if known is None:
        attrs = tuple((k, attribute_key(getattr(v, "digest", v))) for k, v in n.attrs.items() if k != "name")
        known = n.op.name, attrs, n.result_type
        object.__setattr__(n, "_structural_key", known)
    return known


def attribute_key(value: object) -> Hashable:
    """Return a key that distinguishes 0.0 from -0.0 and 1 from True, which compare equal in Python."""
    if isinstance(value, tuple):
        return tuple(map(attribute_key, value))
    return (type(value).__name__, repr(value)) if isinstance(value, (bool, int, float)) else value
