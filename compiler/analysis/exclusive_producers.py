"""Producers that nothing else needs: values that some nodes of a graph use, and no others."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Set

from compiler.analysis.demand import is_cheap_index_expr
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value


def exclusive_producers(
    graph: Graph, order: Mapping[Node, int], users: Iterable[Node], inside: Set[Node], accepts: Callable[[Node], bool]
) -> list[Node]:
    """Return the values computed for `users` that only nodes `inside`, and such values, use, as far as `accepts` holds.

    `order` numbers the nodes of the graph.
    """
    producers, computed = list[Node](), set(inside)
    later_first = [-order[o] for m in users for o in m.operands]
    heapq.heapify(later_first)
    while later_first:
        m = graph.nodes[-heapq.heappop(later_first)]
        if m not in computed and computed.issuperset(graph.users[m]) and accepts(m):
            producers.append(m)
            computed.add(m)
            for o in m.operands:
                heapq.heappush(later_first, -order[o])
    return producers


def index_producers(graph: Graph, order: Mapping[Node, int], n: Node) -> list[Node]:
    """Return what only `n` uses of the values that it is computed from, if it applies a few operations to indices; else nothing."""

    def joins(m: Node) -> bool:
        return m not in graph.outputs and scalar_value(m) is None

    return exclusive_producers(graph, order, [n], {n}, joins) if is_cheap_index_expr(n) else []
