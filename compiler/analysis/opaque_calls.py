"""Operators that a graph leaves to PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from compiler.errors import Loc
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Opaque, TupleGet


@dataclass(frozen=True)
class OpaqueOperator:
    """Operator that runs in PyTorch, the reason, the user's line and the name of its node."""

    operator: str
    reason: str
    loc: Loc | None
    node: str


def opaque_operators(roots: Iterable[Node], *, expandable: bool = True) -> Iterator[OpaqueOperator]:
    """Yield the opaque ops that `roots` depend on, those in nested graphs too; unless `expandable`, those without expansions."""
    graph = Graph((), tuple(roots))
    used = used_results(graph)
    for n in graph.nodes:
        if isinstance(n.structure, Opaque) and (expandable or not _has_expansion(n, n.structure, used)):
            reason = n.attrs.get("reason") or n.structure.reason
            yield OpaqueOperator(n.attrs.get("overload", n.op.name), reason, n.loc, n.name)
        for value in n.attrs.values():
            if isinstance(value, Graph):
                yield from opaque_operators(value.outputs, expandable=expandable)


def used_results(graph: Graph) -> Mapping[Node, frozenset[int]]:
    """Return the numbers of the results that other nodes read, of each node with several."""
    used: dict[Node, frozenset[int]] = {}
    for n in graph.nodes:
        if isinstance(n.structure, TupleGet):
            used[n.operands[0]] = used.get(n.operands[0], frozenset()) | {n.attrs["index"]}
    return used


def _has_expansion(n: Node, structure: Opaque, used: Mapping[Node, frozenset[int]]) -> bool:
    if structure.expansions is None:
        return False
    return next(structure.expansions(n, used.get(n, frozenset())), None) is not None
