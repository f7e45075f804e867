"""Graph IR: SSA over typed tensors.

A `Node` is one value; its operands are nodes, so a graph consists of the nodes reachable from its outputs.  Nodes are
immutable: a pass builds new ones with `Graph.map_nodes` or `Graph.replace_nodes`.  There are no side effects: the
frontend turns mutation into extra outputs.

    graph @name(%x: f32[4, 8]) {
      %s = sigmoid %x
      %y = mul %s, %x
      return %y
    }
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from compiler.ir.graph.node import CONSTANT, INPUT, Node
from compiler.ir.graph.structure import Composite, Leaf, Recurrence
from compiler.ir.symbolic.binding import substitute_symbols
from compiler.ir.symbolic.index_atoms import DynamicSize
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes
from compiler.ir.types import TensorType

if TYPE_CHECKING:
    import networkx

H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, outputs and the nodes between them.

    `output_aliases` maps the number of an output to the number of the input into which the call writes it back (input
    mutation; compare XLA's input_output_alias).
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    name: str = "graph"
    output_aliases: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in topological order: first the inputs, used or not, then those reachable from the outputs."""
        return tuple(postorder((*self.inputs, *self.outputs)))

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """Users of each node; a user is listed once per operand that reads the node."""
        users: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for o in n.operands:
                users[o].append(n)
        return {n: tuple(u) for n, u in users.items()}

    @property
    def constants(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op is CONSTANT)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic dimensions of the inputs."""
        return frozenset().union(*(n.type.symbols for n in self.inputs))

    @cached_property
    def dynamic_sizes(self) -> frozenset[DynamicSize]:
        """The dynamic sizes in types and attributes, those of nested graphs included."""
        return dynamic_sizes_in(tuple((n.result_type, *n.attrs.values()) for n in self.nodes))

    def map_nodes(
        self,
        rule: Callable[[Node, tuple[Node, ...]], Node],
        reached: Callable[[Callable[[], Graph]], None] | None = None,
    ) -> Graph:
        """Rebuild the graph with `rule(node, rebuilt_operands)` in place of each node, inputs included.

        After each node, `reached` is given what builds the graph in which the nodes behind it are left as they are.
        """
        new: dict[Node, Node] = {}
        for n in self.nodes:
            new[n] = rule(n, tuple(new[o] for o in n.operands))
            if reached:
                reached(partial(self._with_first_nodes, new))
        return replace(self, inputs=tuple(new[n] for n in self.inputs), outputs=tuple(new[n] for n in self.outputs))

    def _with_first_nodes(self, replaced: Mapping[Node, Node]) -> Graph:
        """Return the graph with its first nodes replaced."""
        new = dict(replaced)
        for n in self.nodes[len(replaced) :]:
            new[n] = n.with_operands(tuple(new[o] for o in n.operands))
        return replace(self, inputs=tuple(new[n] for n in self.inputs), outputs=tuple(new[n] for n in self.outputs))

    def map_bodies(self, transform: Callable[[Graph], Graph]) -> Graph:
        """Replace the body of every recurrence by `transform(body)`; return `self` if none changes."""
        bodies = {n: n.attrs["body"] for n in self.nodes if isinstance(n.structure, Recurrence)}
        changed = {n: new for n, old in bodies.items() if (new := transform(old)) is not old}
        if not changed:
            return self

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            attrs = {**n.attrs, "body": changed[n]} if n in changed else n.attrs
            return replace(n, attrs=attrs, operands=operands)

        return self.map_nodes(rule)

    def replace_nodes(self, replacements: Mapping[Node, Node]) -> Graph:
        """Replace each key by its value, a node built on the old graph's nodes; users are rebuilt."""
        if not replacements:
            return self
        new: dict[Node, Node] = {}
        for n in postorder(self.outputs, lambda n: (replacements[n],) if n in replacements else n.operands):
            new[n] = new[replacements[n]] if n in replacements else n.with_operands(tuple(new[o] for o in n.operands))
        return replace(self, outputs=tuple(new[n] for n in self.outputs))

    def specialize(self, sizes: Mapping[str, Dim]) -> Graph:
        """Replace symbolic dimensions by `sizes`, constants or dynamic sizes, and infer all types again."""

        def fix(value: Any) -> Any:
            return value.specialize(sizes) if isinstance(value, Graph) else substitute_symbols(value, sizes)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if isinstance(n.structure, Leaf):
                return replace(n, result_type=n.type.specialize(sizes))
            return replace(n.op(*operands, loc=n.loc, **{k: fix(v) for k, v in n.attrs.items()}), name=n.name)

        return self.map_nodes(rule)

    def to_networkx(self) -> networkx.DiGraph:
        """Return the graph as a networkx graph of `Node`s with label, op and type; edges go from operand to user."""
        import networkx

        view: networkx.DiGraph = networkx.DiGraph(name=self.name)
        for n in self.nodes:
            view.add_node(n, label=f"{n.op.name}\n{n.result_type}", op=n.op.name, type=str(n.result_type))
        view.add_edges_from((o, n) for n in self.nodes for o in n.operands)
        return view

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)


def postorder(
    roots: Sequence[Node], dependencies: Callable[[Node], Sequence[Node]] = attrgetter("operands")
) -> list[Node]:
    """Return `roots` and all that they depend on, each node after its `dependencies` and left before right."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(n, False) for n in reversed(roots)]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(d, False) for d in reversed(dependencies(node)) if d not in seen]
    return order


def reachable(roots: Iterable[H], successors: Callable[[H], Iterable[H]]) -> Iterator[H]:
    """Yield `roots` and all that their `successors` lead to, each once, depth first."""
    pending, seen = [*roots], set[H]()
    while pending:
        x = pending.pop()
        if x not in seen:
            seen.add(x)
            yield x
            pending += successors(x)


def preorder(roots: Iterable[Node], members: Container[Node]) -> list[Node]:
    """Return the `members` reached from `roots` and their operands, each before its own operands and left before right."""
    order: dict[Node, None] = {}
    stack = [*roots][::-1]
    while stack:
        node = stack.pop()
        if node not in order:
            order[node] = None
            if node in members:
                stack += node.operands[::-1]
    return list(order)


def expand_composite(node: Node) -> Graph:
    """Expand a composite into a graph with one input per operand; its expansion sees constant operands as constants."""
    assert isinstance(node.structure, Composite), f"{node.op.name} is not a composite"
    names = (f"x{k}" for k in range(len(node.operands)))
    inputs = tuple(Node(INPUT, (), {"name": x}, o.result_type, x, o.loc) for x, o in zip(names, node.operands))
    operands = tuple(o if o.op is CONSTANT else x for o, x in zip(node.operands, inputs, strict=True))
    root = node.structure.expand(replace(node, operands=operands), *operands)
    return Graph(inputs, (root,), node.op.name)


def dynamic_sizes_in(value: object) -> frozenset[DynamicSize]:
    """Return the dynamic sizes in a graph, a type or the value of an attribute."""
    if isinstance(value, Graph):
        return value.dynamic_sizes
    if isinstance(value, TensorType):
        value = value.shape
    if isinstance(value, tuple):
        return frozenset().union(*(dynamic_sizes_in(v) for v in value if not isinstance(v, (int, str))))
    return dynamic_sizes(value) if isinstance(value, IndexExpr) else frozenset()


def own_name(n: Node) -> str:
    """Return the name of a node, "" if it has none."""
    return n.name


def unique_names(nodes: Iterable[Node], name_of: Callable[[Node], str] = own_name) -> dict[Node, str]:
    """Return a distinct name for each node: that of `name_of` if no earlier node has it, else a numbered one."""
    taken: set[str] = set()
    repetitions: Counter[str] = Counter()
    names: dict[Node, str] = {}
    for n in nodes:
        given = name_of(n)
        base, first = given or n.op.name, given or f"{n.op.name}_0"
        name = first
        while name in taken:
            repetitions[first] += 1
            name = f"{base}_{repetitions[first]}"
        taken.add(name)
        names[n] = name
    return names
