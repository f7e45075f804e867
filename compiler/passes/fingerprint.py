"""Telling whether two graphs lower to the same kernel, without lowering them."""

from __future__ import annotations

from collections.abc import Hashable

from compiler.ir.graph import Graph


def fingerprint(g: Graph) -> Hashable:
    """Equal for graphs that lower alike."""
    number = {n: k for k, n in enumerate(g.nodes)}

    def attr(v: object) -> object:
        return id(v) if isinstance(v, Graph) else getattr(v, "digest", v)

    return tuple(
        (
            n.op.name,
            tuple(number[o] for o in n.operands),
            str(n.result),
            tuple((k, attr(v)) for k, v in n.attrs.items() if k != "name"),
        )
        for n in g.nodes
    ) + tuple(number[o] for o in g.outputs)
