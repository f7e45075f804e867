"""Who asks for which elements inside a fused group: decides what a kernel computes once and keeps.

Starting from an element of the group's root, every operand is asked for the element its user's structure reads.  From these
requests follow the *row* loops (those that every reduction inside the group shares) and the nodes worth *keeping* in a local
buffer because computing them again where they are asked for would cost more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from compiler.errors import LoweringError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import (
    ConstantLinear,
    Elementwise,
    Gather,
    Generate,
    IndexMap,
    Leaf,
    Lookup,
    Position,
    Reduction,
    Scan,
    elementwise_expr,
    is_view,
)
from compiler.ir.scalar import PRIMITIVES
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.types import broadcast_index

MAX_RECOMPUTE_COST = 6
"""Multiply-adds beyond which an element is kept rather than computed twice."""

MAX_REQUESTS = 2000
"""Requests beyond which a group is none: sums over rows of sums over columns, and so on, double them each time.  Networks have 200."""


@dataclass(frozen=True)
class Request:
    """Element `index` of a node asked for inside `loops` (outermost first) on behalf of `sink`, a reduction or kept node."""

    index: Position
    loops: tuple[str, ...]
    consumer: Node

    def is_recomputed(self) -> bool:
        """Whether a loop that the index does not follow runs around one that it does."""
        used = set().union(*(variables(d) for d in self.index), set())
        seen_other = False
        for v in self.loops:
            if v not in used:
                seen_other = True
            elif seen_other:
                return True
        return False


@dataclass(eq=False)
class Demand:
    """The requests within one group, given its root and the nodes kept in buffers."""

    graph: Graph
    root: Node
    index: Position
    materialized: frozenset[Node] = frozenset()
    requests: dict[Node, list[Request]] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._pending: dict[Node, Request] = {}
        order = {n: k for k, n in enumerate(self.graph.nodes)}
        self.root_loops = tuple(v for d in self.index for v in sorted(variables(d)))
        self.add_request(self.root, self.index, self.root_loops, self.root)
        while self._pending:  # kept nodes fill their buffers once, latest first
            node = max(self._pending, key=lambda n: order[n])
            self.visit_materialized(node, self._pending.pop(node))

    def add_request(self, node: Node, index: Position, loops: tuple[str, ...], consumer: Node) -> None:
        key = (node, index, loops, consumer)
        if key in self._seen or (isinstance(node.structure, Leaf) and scalar_value(node) is not None):
            return
        self._seen.add(key)
        if len(self._seen) > MAX_REQUESTS:
            raise LoweringError(f"elements of {self.root} are asked for in too many ways")
        self.requests.setdefault(node, []).append(Request(index, loops, consumer))
        if node in self.materialized and node is not consumer:
            self._pending.setdefault(node, Request(index, loops, consumer))
            return
        self.request_operands(node, index, loops, consumer)

    def visit_materialized(self, node: Node, request: Request) -> None:
        """A kept node computes all its elements under the loops it shares with the root."""
        outer = [v for v in self.root_loops if any(v in variables(d) for d in request.index)]
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
        s = node.structure
        if isinstance(s, Elementwise):
            for o in node.operands:
                self.add_request(o, broadcast_index(o.shape, index), loops, consumer)
        elif isinstance(s, Scan):
            for o in node.operands:
                self.add_request(o, index, loops, consumer)
        elif isinstance(s, ConstantLinear):
            dim, matrix = s.axis_and_matrix(node)
            for k in range(len(matrix[0])):
                self.add_request(node.operands[0], (*index[:dim], k, *index[dim + 1 :]), loops, consumer)
        elif isinstance(s, IndexMap):
            for piece in s.reads(node, index):
                self.add_request(node.operands[piece.operand], piece.position, loops, consumer)
        elif isinstance(s, Gather):
            place: list[Dim] = []
            for d in s.position(node, index):
                if isinstance(d, Lookup):
                    self.add_request(node.operands[d.operand], d.position, loops, consumer)
                    inner = sorted(set().union(*(variables(p) for p in d.position), set()))
                    place.append(
                        sum((var(v) for v in inner), start=0)
                    )  # depends on what the looked-up place depends on
                else:
                    place.append(d)
            self.add_request(node.operands[0], tuple(place), loops, consumer)
        elif isinstance(s, Reduction):
            space = s.domain(node)
            points = [self._fresh_var() if e != 1 else None for e in space.extents]
            red = tuple(var(p) if p else 0 for p in points)
            used = set().union(*(variables(d) for d in index), set())
            around = (*(v for v in loops if v in used), *(p for p in points if p))
            for o, place_ in zip(node.operands, space.positions(index, red), strict=True):
                self.add_request(o, place_, around, node)

    def _fresh_var(self) -> str:
        self._count += 1
        return f"?{self._count}"

    @cached_property
    def shared_loops(self) -> tuple[str, ...]:
        """Root loops shared by every reduction and kept node that does not follow all of them, in loop order."""
        shared: set[str] | None = None
        for node, asked in self.requests.items():
            if not isinstance(node.structure, Reduction) and node not in self.materialized:
                continue
            for r in asked:
                used = {v for d in r.index for v in variables(d)} & set(self.root_loops)
                if used != set(self.root_loops):
                    shared = used if shared is None else shared & used
        return self.root_loops if shared is None else tuple(v for v in self.root_loops if v in shared)

    def should_materialize(self, node: Node) -> bool:
        """Whether `node` would be computed again at a price: for several sinks, or in loops it does not follow."""
        if node is self.root or node in self.materialized or isinstance(node.structure, (Leaf, Generate, Scan)):
            return False
        asked = self.requests.get(node, [])
        used = {v for r in asked for d in r.index for v in variables(d)}
        if used <= set(self.shared_loops):
            return False  # one value per row: placed in the row loop, computed once
        if self.recompute_cost(node) < MAX_RECOMPUTE_COST:
            return False
        return len({r.consumer for r in asked}) > 1 or any(r.is_recomputed() for r in asked)

    def recompute_cost(self, node: Node) -> int:
        """Multiply-adds to compute one element from what is in memory or kept."""
        if node in self.materialized or isinstance(node.structure, Leaf):
            return 0
        if isinstance(node.structure, (Reduction, Scan)):
            return 1000
        asked = self.requests.get(node, [])
        if asked and {v for r in asked for d in r.index for v in variables(d)} < set(self.shared_loops):
            return 0
        own = elementwise_cost(node) if isinstance(node.structure, Elementwise) else 1
        return own + sum(self.recompute_cost(o) for o in node.operands)


def elementwise_cost(node: Node) -> int:
    """Multiply-adds of one element of an elementwise node."""
    return sum(PRIMITIVES[x.primitive].cost for x in elementwise_expr(node).calls)


def is_cheap_index_expr(node: Node) -> bool:
    """Whether a node takes an operation or two on indices: its users may learn more from them than from a tensor."""
    sources = [o.operands[0] if is_view(o.structure, o) else o for o in node.operands if scalar_value(o) is None]
    plain = isinstance(node.structure, Elementwise) and all(isinstance(o.structure, Generate) for o in sources)
    return plain and bool(sources) and elementwise_cost(node) <= 2


def solve_demand(graph: Graph, root: Node, index: Position) -> Demand:
    """The demand of a group with everything kept that is worth keeping, found latest node first."""
    demand = Demand(graph, root, index)
    while True:
        late = next((n for n in reversed(graph.nodes) if demand.should_materialize(n)), None)
        if late is None:
            return demand
        demand = Demand(graph, root, index, demand.materialized | {late})
