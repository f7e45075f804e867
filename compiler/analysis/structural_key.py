"""Structural key of a graph: graphs with equal keys lower to the same kernel."""

from __future__ import annotations

from collections.abc import Hashable

from compiler.ir.graph.graph import Graph


def structural_key(g: Graph) -> Hashable:
    """Return a hashable key of ops, operands, types and attributes; attributes `name` are ignored."""
    number = {n: k for k, n in enumerate(g.nodes)}

    def attr(v: object) -> object:
        return id(v) if isinstance(v, Graph) else attribute_key(getattr(v, "digest", v))

    return tuple(
        (
            n.op.name,
            tuple(number[o] for o in n.operands),
            str(n.result_type),
            tuple((k, attr(v)) for k, v in n.attrs.items() if k != "name"),
        )
        for n in g.nodes
    ) + tuple(number[o] for o in g.outputs)


def attribute_key(value: object) -> Hashable:
    """Return a key that distinguishes 0.0 from -0.0 and 1 from True, which compare equal in Python."""
    if isinstance(value, tuple):
        return tuple(map(attribute_key, value))
    return (type(value).__name__, repr(value)) if isinstance(value, (bool, int, float)) else value
