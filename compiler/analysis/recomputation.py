"""Recomputation: which values kernels compute again in each user, instead of storing them once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.analysis.demand import elementwise_cost, is_cheap_index_expr
from compiler.cost.machine import Machine
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import Elementwise, IndexMap, Leaf, Reduction, is_view
from compiler.ir.tile.kernel import dim_hint


@dataclass(frozen=True)
class Recomputation:
    """Answers for the values of a graph on a machine."""

    graph: Graph
    machine: Machine

    def is_cheap(self, n: Node) -> bool:
        """Return True if recomputing `n` in each user reads no more bytes than its result has.

        What is broadcast from cache does not count, unless `n` alone uses the rest: then it is better the epilogue of that.
        """
        if is_view(n.structure, n) or is_cheap_index_expr(n):
            return True
        if not isinstance(n.structure, (Elementwise, IndexMap)):
            return not n.operands and not isinstance(n.structure, Reduction)
        operands = [o for o in n.operands if scalar_value(o) is None]
        large = self.large_values(operands, n)
        read = sum(map(hinted_bytes, large if all(map(self.is_stored, large)) else operands))
        return read <= hinted_bytes(n) and (not isinstance(n.structure, Elementwise) or elementwise_cost(n) <= 2)

    def takes_less_than_memory(self, n: Node, times: int) -> bool:
        """Return True if computing `n` so often from stored values takes less time than to write it and read it again."""

        def is_inside(m: Node) -> bool:
            return m is n or (isinstance(m.structure, Elementwise) and not self.is_stored(m))

        reached = [*reachable([n], lambda m: m.operands if is_inside(m) else ())]
        large = self.large_values([m for m in reached if not is_inside(m) and scalar_value(m) is None], n)
        if not isinstance(n.structure, Elementwise) or not all(map(self.is_stored, large)):
            return False
        machine, size = self.machine, hinted_bytes(n)
        if sum(map(hinted_bytes, large)) > size or size * machine.streamed_output < machine.l3:
            return False  # it would stay in the last cache
        operations = times * sum(elementwise_cost(m) for m in reached if is_inside(m)) * (size // n.dtype.bytes)
        return machine.operation_seconds(operations) <= machine.round_trip_seconds(size)

    def large_values(self, values: Iterable[Node], n: Node) -> list[Node]:
        """Return the values that are not broadcast from cache where `n` is computed from them."""
        return [o for o in values if hinted_bytes(o) >= hinted_bytes(n) or hinted_bytes(o) > self.machine.l1]

    def is_stored(self, n: Node) -> bool:
        """Return True if `n` is in memory whatever becomes of one of its users."""
        return isinstance(n.structure, Leaf) or len(self.graph.users[n]) > 1 or n in self.graph.outputs


def hinted_bytes(n: Node) -> int:
    """Return the bytes of a value under the size hints, 1 if there are none."""
    return dim_hint(n.type.nbytes)
