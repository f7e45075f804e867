"""Demand analysis: the elements that the consumers in a fused group request of each node, and inside which loops.

Requests are propagated from one element of the group's root to the operands, by the structure of each node.
They determine the shared loops (those that every reduction of the group is indexed by) and the nodes to materialize:
nodes that are cheaper to compute once into a local buffer than again at each request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from compiler.cost.machine import Machine
from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import (
    Elementwise,
    Generate,
    Leaf,
    Position,
    Reduction,
    Scan,
    elementwise_expr,
    is_view,
    position_variables,
)
from compiler.ir.scalar import PRIMITIVES
from compiler.ir.symbolic.index_expr import Bounds, Dim, simplify, var, variables

MAX_REQUESTS = 2000
"""Most requests in a group: each nested reduction over another dimension doubles them.  Bounds compile time: networks have 200."""

REDUCTION_RECOMPUTE_COST = 1000
"""Multiply-adds assumed for one element of a reduction or scan of any length; only has to exceed `Machine.recompute_ops`."""


@dataclass(frozen=True)
class Request:
    """Element `index` of a node, requested inside `loops` (outermost first).

    `consumer` is the reduction or materialized node that the element is for, or the root.
    """

    index: Position
    loops: tuple[str, ...]
    consumer: Node

    def is_recomputed(self) -> bool:
        """Return True if a loop that the index does not use encloses one that it uses."""
        used = position_variables(self.index)
        is_used = [v in used for v in self.loops]
        return is_used != sorted(is_used, reverse=True)


@dataclass(eq=False)
class Demand:
    """The requests within one group, given its root and the materialized nodes.

    `index` is the position in the root, of variables within `bounds`: one for each dimension, or where the kernel runs the loops of
    a value behind the root, an expression of several.
    Raises LoweringError if there are more than MAX_REQUESTS.
    """

    graph: Graph
    root: Node
    index: Position
    materialized: frozenset[Node] = frozenset()
    bounds: Bounds = field(default_factory=dict)
    requests: dict[Node, list[Request]] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._pending: dict[Node, Request] = {}
        self._recompute_costs: dict[Node, int] = {}
        self._index_exprs: dict[Node, bool] = {}
        order = {n: k for k, n in enumerate(self.graph.nodes)}
        self.root_loops = tuple(v for d in self.index for v in sorted(variables(d)))
        self.add_request(self.root, self.index, self.root_loops, self.root)
        while self._pending:  # materialized nodes fill their buffers once, consumers before producers
            node = max(self._pending, key=lambda n: order[n])
            self.visit_materialized(node, self._pending.pop(node))

    def add_request(self, node: Node, index: Position, loops: tuple[str, ...], consumer: Node) -> None:
        """Record a request and those that follow from it for the operands of `node`."""
        key = (node, index, loops, consumer)
        if key in self._seen or (isinstance(node.structure, Leaf) and scalar_value(node) is not None):
            return
        self._seen.add(key)
        if len(self._seen) > MAX_REQUESTS:
            raise LoweringError(f"too many distinct index expressions for {self.root}")
        self.requests.setdefault(node, []).append(Request(index, loops, consumer))
        if node in self.materialized and node is not consumer:
            self._pending.setdefault(node, Request(index, loops, consumer))
            return
        self.request_operands(node, index, loops, consumer)

    def visit_materialized(self, node: Node, request: Request) -> None:
        """Request what all elements of a materialized node read, inside the root loops that its index uses."""
        used = position_variables(request.index)
        outer = [v for v in self.root_loops if v in used]
        index: list[Dim] = []
        own: list[str] = []
        for d in request.index:
            if isinstance(d, int) or all(v in outer for v in variables(d)):
                index.append(d)
            else:
                own.append(self._fresh_var())
                index.append(var(own[-1]))
        self.request_operands(node, tuple(index), (*outer, *own), node)

    def request_operands(self, node: Node, index: Position, loops: tuple[str, ...], consumer: Node) -> None:
        """Request the elements of the operands that element `index` of `node` reads."""
        own: list[str] = []

        def new_loop() -> Dim:
            own.append(self._fresh_var())
            return var(own[-1])

        elements = node.structure.operand_elements(node, index, new_loop)
        if isinstance(node.structure, Reduction):
            outer = position_variables(index)
            loops, consumer = (*(v for v in loops if v in outer), *own), node
        for operand, position in elements:
            self.add_request(operand, tuple(simplify(d, self.bounds) for d in position), loops, consumer)

    def _fresh_var(self) -> str:
        self._count += 1
        return f"?{self._count}"

    @cached_property
    def shared_loops(self) -> tuple[str, ...]:
        """Root loops used by every reduction and materialized node that does not use all of them, in loop order."""
        shared: set[str] | None = None
        for node, requests in self.requests.items():
            if not isinstance(node.structure, Reduction) and node not in self.materialized:
                continue
            for r in requests:
                used = position_variables(r.index) & set(self.root_loops)
                if used != set(self.root_loops):
                    shared = used if shared is None else shared & used
        return self.root_loops if shared is None else tuple(v for v in self.root_loops if v in shared)

    def should_materialize(self, node: Node, machine: Machine) -> bool:
        """Return True if `node` is expensive to recompute on `machine` and has several consumers or is in loops it does not use."""
        if node is self.root or node in self.materialized or isinstance(node.structure, (Leaf, Generate, Scan)):
            return False
        requests = self.requests.get(node, [])
        if position_variables(*(r.index for r in requests)) <= set(self.shared_loops):
            return False  # placed in the shared loops and computed once
        if self.recompute_cost(node) < machine.recompute_ops:
            return False
        return len({r.consumer for r in requests}) > 1 or any(r.is_recomputed() for r in requests)

    def recompute_cost(self, node: Node) -> int:
        """Return the multiply-adds of one element, computed from leaves and materialized nodes; an operand counts at each use."""
        if node not in self._recompute_costs:
            self._recompute_costs[node] = self._recompute_cost(node)
        return self._recompute_costs[node]

    def _recompute_cost(self, node: Node) -> int:
        if node in self.materialized or isinstance(node.structure, Leaf) or self.is_index_expr(node):
            return 0
        if isinstance(node.structure, (Reduction, Scan)):
            return REDUCTION_RECOMPUTE_COST
        requests = self.requests.get(node, [])
        if requests and position_variables(*(r.index for r in requests)) < set(self.shared_loops):
            return 0
        own = elementwise_cost(node) if isinstance(node.structure, Elementwise) else not is_view(node.structure, node)
        return own + sum(self.recompute_cost(o) for o in node.operands)

    def is_index_expr(self, node: Node) -> bool:
        """Return True if `node` is computed from indices alone, as its consumers' addresses are."""
        if node not in self._index_exprs:
            operands = [o for o in node.operands if scalar_value(o) is None]
            is_computed = isinstance(node.structure, Elementwise) or is_view(node.structure, node)
            from_indices = is_computed and bool(operands) and all(map(self.is_index_expr, operands))
            self._index_exprs[node] = from_indices or isinstance(node.structure, Generate)
        return self._index_exprs[node]


def elementwise_cost(node: Node) -> int:
    """Return the multiply-adds of one element of an elementwise node."""
    return sum(PRIMITIVES[x.primitive].cost for x in elementwise_expr(node).calls)


def is_cheap_index_expr(node: Node, operations: int = 2) -> bool:
    """Return True if `node` applies at most so many operations to indices, which consumers can simplify when inlined."""
    if not isinstance(node.structure, Elementwise):
        return False
    left = operations - elementwise_cost(node)
    sources = [o.operands[0] if is_view(o.structure, o) else o for o in node.operands if scalar_value(o) is None]
    from_indices = (isinstance(o.structure, Generate) or is_cheap_index_expr(o, left) for o in sources)
    return left >= 0 and bool(sources) and all(from_indices)


def solve_demand(
    graph: Graph,
    root: Node,
    index: Position,
    machine: Machine,
    stored: frozenset[Node] = frozenset(),
    bounds: Bounds | None = None,
) -> Demand:
    """Return the demand of a group after materializing `stored` nodes, and others from the last to the first until none is worth it."""
    demand = Demand(graph, root, index, stored, bounds or {})
    while True:
        node = next((n for n in reversed(graph.nodes) if demand.should_materialize(n, machine)), None)
        if node is None:
            return demand
        demand = Demand(graph, root, index, demand.materialized | {node}, demand.bounds)
