"""Graph IR: SSA over typed tensors.

A `Node` is one value; its operands are nodes, so a graph is what its outputs reach.  Nodes never change: a pass builds new
ones with `Graph.rebuild`.  Effects do not exist here: the frontend makes mutation into extra outputs.

    graph @name(%x: f32[4, 8]) {
      %s = sigmoid %x
      %y = mul %s, %x
      return %y
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import Composite, Leaf, Recurrence
from compiler.ir.symbolic.index_expr import Dim, substitute_symbols

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, outputs and everything between.

    `aliases` maps an output's position to the input it is written back to when the call ends (input mutation).
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    name: str = "graph"
    output_aliases: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node an output reaches, operands before users; inputs come first, used or not."""
        order: list[Node] = []
        seen: set[Node] = set()

        def visit(root: Node) -> None:
            stack: list[tuple[Node, bool]] = [(root, False)]
            while stack:
                node, done = stack.pop()
                if done:
                    order.append(node)
                elif node not in seen:
                    seen.add(node)
                    stack.append((node, True))
                    stack.extend((o, False) for o in reversed(node.operands) if o not in seen)

        for root in (*self.inputs, *self.outputs):
            visit(root)
        return tuple(order)

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that read each node, once per operand position."""
        found: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for o in n.operands:
                found[o].append(n)
        return {n: tuple(u) for n, u in found.items()}

    @property
    def constants(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op is CONSTANT)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic dimensions of the inputs."""
        return frozenset().union(*(n.type.symbols for n in self.inputs))

    def map_nodes(self, rule: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
        """A graph where each node is `rule(node, its operands already rebuilt)`; inputs may be replaced too."""
        new: dict[Node, Node] = {}
        for n in self.nodes:
            new[n] = rule(n, tuple(new[o] for o in n.operands))
        return replace(self, inputs=tuple(new[n] for n in self.inputs), outputs=tuple(new[n] for n in self.outputs))

    def map_bodies(self, transform: Callable[[Graph], Graph]) -> Graph:
        """The graph with the body of every recurrence in it replaced by `rule(body)`; `self` where none changes."""
        bodies = {n: n.attrs["body"] for n in self.nodes if isinstance(n.structure, Recurrence)}
        changed = {n: new for n, old in bodies.items() if (new := transform(old)) is not old}
        if not changed:
            return self

        def one(n: Node, operands: tuple[Node, ...]) -> Node:
            node = replace(n, attrs={**n.attrs, "body": changed[n]}) if n in changed else n
            return replace(node, operands=operands)

        return self.map_nodes(one)

    def replace_nodes(self, replacements: Mapping[Node, Node]) -> Graph:
        """A graph where each key is replaced by its value (built over the old graph's nodes)."""
        if not replacements:
            return self
        memo: dict[Node, Node] = {}

        def resolve(root: Node) -> Node:
            stack = [root]
            while stack:
                n = stack[-1]
                target = replacements.get(n)
                pending = [target] if target is not None else list(n.operands)
                waiting = [p for p in pending if p not in memo and p is not n]
                if waiting and n not in memo:
                    stack.extend(waiting)
                    continue
                if n not in memo:
                    memo[n] = (
                        memo[target] if target is not None else n.with_operands(tuple(memo[o] for o in n.operands))
                    )
                stack.pop()
            return memo[root]

        return replace(self, outputs=tuple(resolve(n) for n in self.outputs))

    def specialize(self, sizes: Mapping[str, Dim]) -> Graph:
        """The graph with its symbolic dimensions replaced by `sizes`: numbers, or sizes that stay open."""

        def fix(value: Any) -> Any:
            return value.specialize(sizes) if isinstance(value, Graph) else substitute_symbols(value, sizes)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if isinstance(n.structure, Leaf):
                return replace(n, result_type=n.type.specialize(sizes))
            return replace(n.op(*operands, loc=n.loc, **{k: fix(v) for k, v in n.attrs.items()}), name=n.name)

        return self.map_nodes(rule)

    def to_networkx(self) -> networkx.DiGraph:
        """The graph as a networkx view: nodes are `Node`s with label, op and type; edges run from operand to user."""
        import networkx

        view: networkx.DiGraph = networkx.DiGraph(name=self.name)
        for n in self.nodes:
            view.add_node(n, label=f"{n.op.name}\n{n.result_type}", op=n.op.name, type=str(n.result_type))
        view.add_edges_from((o, n) for n in self.nodes for o in n.operands)
        return view

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


def expand_composite(node: Node) -> Graph:
    """A composite's meaning as a graph with one input per operand; constant operands are seen through."""
    assert isinstance(node.structure, Composite), f"{node.op.name} is not a composite"
    inputs = tuple(
        Node(INPUT, (), {"name": f"x{k}"}, o.result_type, f"x{k}", o.loc) for k, o in enumerate(node.operands)
    )
    operands = tuple(o if o.op is CONSTANT else x for o, x in zip(node.operands, inputs, strict=True))
    root = node.structure.expand(replace(node, operands=operands), *operands)
    return Graph(inputs, (root,), node.op.name)


def unique_names(nodes: Iterable[Node]) -> dict[Node, str]:
    """A distinct name for each node: its own where free, else a numbered one."""
    taken: set[str] = set()
    names: dict[Node, str] = {}
    for n in nodes:
        base = n.name or n.op.name
        name, count = (base, 0) if n.name else (f"{base}_0", 0)
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        names[n] = name
    return names
