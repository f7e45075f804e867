"""Graphs in which data decides sizes, cut in parts: each begins where the sizes that its types name are known.

    graph @g(%x: f32[n]) {                               part 0    %m = gt %x, 0
      %m = gt %x, 0                                      then      %k = eager %m, which tells u0
      %k: i64[u0, 1] = eager %m {aten.nonzero}           part 1    %y = exp of a look-up of %k in %x
      %y: f32[u0] = exp of a look-up of %k in %x
      return %y
    }

What tells a size is a call into PyTorch whose result has a dimension that neither its operands nor its arguments name.  It is
made as early as it can be, between two parts; everything else is computed as late as it is wanted, beside what uses it.
Graphs that run only where data says so (`Control`) are called between parts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.errors import VerifyError
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.node import CONSTANT, INPUT, Node, input_node
from compiler.ir.graph.structure import ControlFlow, Opaque, TupleGet
from compiler.ir.symbolic.index_expr import IndexExpr, dynamic_sizes, var, variables
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Subgraph:
    """What is computed at once, as a graph: it `takes` values of the whole graph and `gives` others; then come `calls`."""

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    eager_calls: tuple[Node, ...]


def needs_partitioning(graph: Graph) -> bool:
    """Whether data decides sizes in `graph`, or which graph is run."""
    given = graph.symbols
    tells = any(not symbol_names(n.result_type) <= given for n in graph.nodes if isinstance(n.structure, Opaque))
    return tells or any(isinstance(n.structure, ControlFlow) for n in graph.nodes)


def partition(graph: Graph) -> tuple[Subgraph, ...]:
    """The parts of `graph`, in the order in which they can be computed."""
    steps = _Partitioner(graph)
    return tuple(map(steps.subgraph, range(steps.subgraph_count)))


def symbol_names(value: Any) -> frozenset[str]:
    """The symbols in a type, an attribute or several of them."""
    if isinstance(value, TensorType):
        return value.symbols
    if isinstance(value, IndexExpr):
        return variables(value) | {s.name for s in dynamic_sizes(value)}
    if isinstance(value, Graph):
        named = frozenset[str]().union(*(symbol_names((n.result_type, *n.attrs.values())) for n in value.nodes))
        return named.difference(*map(defined_symbols, value.nodes))
    return frozenset().union(*map(symbol_names, value)) if isinstance(value, tuple) else frozenset()


def defined_symbols(node: Node) -> frozenset[str]:
    """The symbols that a call into PyTorch tells: those of its results that nothing it is given names."""
    if not isinstance(node.structure, Opaque):
        return frozenset()
    given = (v for k, v in node.attrs.items() if k != node.structure.shape_attr)
    return symbol_names(node.result_type) - symbol_names((*(o.result_type for o in node.operands), *given))


@dataclass(frozen=True)
class _Partitioner:
    """The steps of `partition`, each computed once."""

    graph: Graph

    @cached_property
    def names(self) -> Mapping[Node, str]:
        return unique_names(self.graph.nodes)

    @cached_property
    def definers(self) -> Mapping[str, Node]:
        """The call that tells each symbol that no input tells: of several, the first."""
        found: dict[str, Node] = {}
        given = self.graph.symbols
        for n in self.graph.nodes:
            for name in defined_symbols(n) - given:
                found.setdefault(name, n)
        return found

    @cached_property
    def eager_calls(self) -> frozenset[Node]:
        return frozenset(self.definers.values()) | {n for n in self.graph.nodes if isinstance(n.structure, ControlFlow)}

    @cached_property
    def dependencies(self) -> Mapping[Node, tuple[Node, ...]]:
        """The operands of each node, and the calls that tell its sizes."""
        given, found = self.graph.symbols, {}
        for n in self.graph.nodes:
            names = sorted(symbol_names((n.result_type, *n.attrs.values())) - given)
            if untold := [name for name in names if name not in self.definers]:
                raise VerifyError(f"%{n.name}: nothing tells the size {untold[0]}")
            found[n] = (*n.operands, *(t for t in map(self.definers.__getitem__, names) if t is not n))
        return found

    @cached_property
    def topological_order(self) -> tuple[Node, ...]:
        """Every node, behind all that it needs."""
        done: dict[Node, None] = {}
        stack = [(n, False) for n in reversed(self.graph.nodes)]
        while stack:
            n, ready = stack.pop()
            if ready:
                done[n] = None
            elif n not in done:
                stack.append((n, True))
                stack.extend((o, False) for o in self.dependencies[n] if o not in done)
        return tuple(done)

    @cached_property
    def earliest_index(self) -> Mapping[Node, int]:
        """The first part in which each node can be computed, or behind which it can be called."""
        found: dict[Node, int] = {}
        for n in self.topological_order:
            found[n] = max((found[o] + (o in self.eager_calls) for o in self.dependencies[n]), default=0)
        return found

    @cached_property
    def rematerializable(self) -> frozenset[Node]:
        """What depends on no input and draws nothing: every part that wants it has its own."""
        found: set[Node] = set()
        for n in self.topological_order:
            made_elsewhere = isinstance(n.structure, Opaque) or self.is_external(n)
            if not made_elsewhere and all(o in found for o in self.dependencies[n]):
                found.add(n)
        return frozenset(found)

    @cached_property
    def assigned_index(self) -> Mapping[Node, int]:
        """The part that computes each node (but for inputs, calls and what is free): the last that still serves its users."""
        found = dict.fromkeys(self.topological_order, self.subgraph_count - 1)
        for n in reversed(self.topological_order):
            if isinstance(n.structure, Opaque) or n in self.eager_calls:
                found[n] = self.earliest_index[n]
            for o in n.operands:
                found[o] = min(found[o], found[n])
        found |= {n: found[n.operands[0]] for n in self.topological_order if isinstance(n.structure, TupleGet)}
        return {n: k for n, k in found.items() if not (self.is_external(n) or n in self.rematerializable)}

    def is_external(self, n: Node) -> bool:
        """Whether parts take a node from outside: an input, a call or one of its results."""
        return (
            n.op is INPUT
            or n in self.eager_calls
            or (isinstance(n.structure, TupleGet) and n.operands[0] in self.eager_calls)
        )

    @cached_property
    def subgraph_count(self) -> int:
        return 1 + max(self.earliest_index.values(), default=0)

    def subgraph(self, k: int) -> Subgraph:
        calls = tuple(n for n in self.topological_order if n in self.eager_calls and self.earliest_index[n] == k)
        own = {n for n, part in self.assigned_index.items() if part == k}
        called = {o for c in calls for o in c.operands}
        later = {o for n, part in self.assigned_index.items() if part > k for o in n.operands}.union(self.graph.outputs)
        computed = called.union(self.graph.outputs if k == self.subgraph_count - 1 else ()) & self.rematerializable
        gives = tuple(
            n for n in self.topological_order if n in own & (called | later) or (n in computed and n.op is not CONSTANT)
        )
        taken = [
            o
            for n in self.topological_order
            if n in own
            for o in n.operands
            if o not in own and o not in self.rematerializable
        ]
        new = {n: input_node(self.names[n], n.type) for n in taken}
        for n in self.topological_order:
            if n in own:
                new[n] = n.with_operands(tuple(new.get(o, o) for o in n.operands)).with_name(self.names[n])
        outputs = tuple(new.get(n, n) for n in gives)
        new |= {n: input_node(self.names[n], n.type) for n in self.size_carriers(Graph((), outputs), taken)}
        takes = tuple(n for n in new if n not in own)
        return Subgraph(Graph(tuple(new[n] for n in takes), outputs, f"{self.graph.name}_{k}"), takes, gives, calls)

    def size_carriers(self, graph: Graph, read_nodes: Sequence[Node]) -> Iterator[Node]:
        """Values whose shapes tell what sizes `graph` names and nothing `taken` tells plainly."""
        told = {d for n in read_nodes for d in n.shape}
        given = [n for n in self.topological_order if self.is_external(n) and isinstance(n.result_type, TensorType)]
        for name in sorted(symbol_names(graph)):
            if var(name) not in told:
                tell = [n for n in given if name in n.type.symbols]
                for n in [n for n in tell if var(name) in n.shape][:1] or tell:
                    told.update(n.shape)
                    yield n
