"""Operators that a graph leaves to PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compiler.errors import Loc
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Opaque


@dataclass(frozen=True)
class OpaqueOperator:
    """Operator that runs in PyTorch, the reason, the user's line and the name of its node."""

    operator: str
    reason: str
    loc: Loc | None
    node: str


def opaque_operators(roots: Iterable[Node]) -> Iterator[OpaqueOperator]:
    """Yield the opaque ops that `roots` depend on, those in nested graphs too."""
    for n in Graph((), tuple(roots)).nodes:
        if isinstance(n.structure, Opaque):
            reason = n.attrs.get("reason") or n.structure.reason
            yield OpaqueOperator(n.attrs.get("overload", n.op.name), reason, n.loc, n.name)
        for value in n.attrs.values():
            if isinstance(value, Graph):
                yield from opaque_operators(value.outputs)
