"""Partition graphs with data-dependent sizes into subgraphs with eager calls between them.

    graph @g(%x: f32[n]) {                               subgraph 0    %m = gt %x, 0
      %m = gt %x, 0                                      eager call    %k = eager %m, which defines u0
      %k: i64[u0, 1] = eager %m {aten.nonzero}           subgraph 1    %y = exp of a gather from %x at %k
      %y: f32[u0] = exp of a gather from %x at %k
      return %y
    }

An unbacked symbol is defined by an eager call whose result has a dimension that neither its operands nor its attributes
name.  The call runs between two subgraphs, as early as possible; all other nodes are computed as late as possible, in
the subgraph of their users.  Control flow ops are called between subgraphs too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.errors import VerifyError
from compiler.ir.graph.graph import Graph, postorder, unique_names
from compiler.ir.graph.node import CONSTANT, INPUT, Node, input_node
from compiler.ir.graph.structure import ControlFlow, Opaque, TupleGet
from compiler.ir.symbolic.index_expr import IndexExpr, dynamic_sizes, var, variables
from compiler.ir.types import TensorType


@dataclass(frozen=True)
class Subgraph:
    """A graph that is compiled as one program; `eager_calls` run after it.

    `inputs`, `outputs` and `eager_calls` are nodes of the partitioned graph.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    eager_calls: tuple[Node, ...]


def needs_partitioning(graph: Graph) -> bool:
    """Return True if `graph` has data-dependent sizes or control flow."""
    backed = graph.symbols
    defines = any(not symbol_names(n.result_type) <= backed for n in graph.nodes if isinstance(n.structure, Opaque))
    return defines or any(isinstance(n.structure, ControlFlow) for n in graph.nodes)


def partition(graph: Graph) -> tuple[Subgraph, ...]:
    """Split `graph` into subgraphs, in execution order; VerifyError if a symbol has no definition."""
    partitioner = _Partitioner(graph)
    return tuple(map(partitioner.subgraph, range(partitioner.subgraph_count)))


def symbol_names(value: Any) -> frozenset[str]:
    """Return the free symbols in a type, an attribute value, a graph, or a tuple of these."""
    if isinstance(value, TensorType):
        return value.symbols
    if isinstance(value, IndexExpr):
        return variables(value) | {s.name for s in dynamic_sizes(value)}
    if isinstance(value, Graph):
        used = frozenset[str]().union(*(symbol_names((n.result_type, *n.attrs.values())) for n in value.nodes))
        return used.difference(*map(defined_symbols, value.nodes))
    return frozenset().union(*map(symbol_names, value)) if isinstance(value, tuple) else frozenset()


def defined_symbols(node: Node) -> frozenset[str]:
    """Return the symbols that an opaque op defines: those of its results that no operand or attribute contains."""
    if not isinstance(node.structure, Opaque):
        return frozenset()
    attrs = (v for k, v in node.attrs.items() if k != node.structure.shape_attr)
    return symbol_names(node.result_type) - symbol_names((*(o.result_type for o in node.operands), *attrs))


@dataclass(frozen=True)
class _Partitioner:
    """The analyses behind `partition`, each computed once."""

    graph: Graph

    @cached_property
    def names(self) -> Mapping[Node, str]:
        return unique_names(self.graph.nodes)

    @cached_property
    def definers(self) -> Mapping[str, Node]:
        """The first node that defines each unbacked symbol."""
        result: dict[str, Node] = {}
        backed = self.graph.symbols
        for n in self.graph.nodes:
            for name in defined_symbols(n) - backed:
                result.setdefault(name, n)
        return result

    @cached_property
    def eager_calls(self) -> frozenset[Node]:
        return frozenset(self.definers.values()) | {n for n in self.graph.nodes if isinstance(n.structure, ControlFlow)}

    @cached_property
    def dependencies(self) -> Mapping[Node, tuple[Node, ...]]:
        """The operands of each node, and the nodes that define its unbacked symbols."""
        backed, result = self.graph.symbols, {}
        for n in self.graph.nodes:
            names = sorted(symbol_names((n.result_type, *n.attrs.values())) - backed)
            if undefined := [name for name in names if name not in self.definers]:
                raise VerifyError(f"%{n.name}: unbacked symbol {undefined[0]} has no definition")
            result[n] = (*n.operands, *(d for d in map(self.definers.__getitem__, names) if d is not n))
        return result

    @cached_property
    def topological_order(self) -> tuple[Node, ...]:
        """Return every node, after all its dependencies."""
        return tuple(postorder(self.graph.nodes, self.dependencies.__getitem__))

    @cached_property
    def earliest_index(self) -> Mapping[Node, int]:
        """Number of the first subgraph that can compute each node, or after which an eager call can run."""
        index: dict[Node, int] = {}
        for n in self.topological_order:
            index[n] = max((index[o] + (o in self.eager_calls) for o in self.dependencies[n]), default=0)
        return index

    @cached_property
    def rematerializable(self) -> frozenset[Node]:
        """Nodes that depend on no input or opaque op; every subgraph that uses one computes its own copy."""
        result: set[Node] = set()
        for n in self.topological_order:
            is_source = isinstance(n.structure, Opaque) or self.is_external(n)
            if not is_source and all(o in result for o in self.dependencies[n]):
                result.add(n)
        return frozenset(result)

    @cached_property
    def assigned_index(self) -> Mapping[Node, int]:
        """Number of the subgraph that computes each node: the first with a user, or the earliest for opaque ops.

        External and rematerializable nodes have none.
        """
        index = dict.fromkeys(self.topological_order, self.subgraph_count - 1)
        for n in reversed(self.topological_order):
            if isinstance(n.structure, Opaque) or n in self.eager_calls:
                index[n] = self.earliest_index[n]
            for o in n.operands:
                index[o] = min(index[o], index[n])
        index |= {n: index[n.operands[0]] for n in self.topological_order if isinstance(n.structure, TupleGet)}
        return {n: k for n, k in index.items() if not (self.is_external(n) or n in self.rematerializable)}

    def is_external(self, n: Node) -> bool:
        """Return True for nodes that no subgraph computes: inputs, eager calls and their results."""
        source = n.operands[0] if isinstance(n.structure, TupleGet) else n
        return n.op is INPUT or n in self.eager_calls or source in self.eager_calls

    @cached_property
    def subgraph_count(self) -> int:
        return 1 + max(self.earliest_index.values(), default=0)

    def subgraph(self, k: int) -> Subgraph:
        """Build subgraph number `k`."""
        calls = tuple(n for n in self.topological_order if n in self.eager_calls and self.earliest_index[n] == k)
        own = [n for n in self.topological_order if self.assigned_index.get(n) == k]
        call_operands = {o for c in calls for o in c.operands}
        used_later = {o for n, index in self.assigned_index.items() if index > k for o in n.operands}
        used = call_operands | used_later.union(self.graph.outputs)
        copied = call_operands.union(self.graph.outputs if k == self.subgraph_count - 1 else ()) & self.rematerializable
        results = used.intersection(own) | {n for n in copied if n.op is not CONSTANT}
        outputs = tuple(n for n in self.topological_order if n in results)
        computed = self.rematerializable.union(own)
        read = [o for n in own for o in n.operands if o not in computed]
        new = {n: input_node(self.names[n], n.type) for n in read}
        for n in own:
            new[n] = n.with_operands(tuple(new.get(o, o) for o in n.operands)).with_name(self.names[n])
        new_outputs = tuple(new.get(n, n) for n in outputs)
        new |= {n: input_node(self.names[n], n.type) for n in self.size_carriers(Graph((), new_outputs), read)}
        inputs = tuple(n for n in new if n not in computed)
        graph = Graph(tuple(new[n] for n in inputs), new_outputs, f"{self.graph.name}_{k}")
        return Subgraph(graph, inputs, outputs, calls)

    def size_carriers(self, graph: Graph, read_nodes: Sequence[Node]) -> Iterator[Node]:
        """Yield external nodes whose shapes bind the symbols of `graph` that are no dimension of `read_nodes`."""
        bound = {d for n in read_nodes for d in n.shape}
        external = [n for n in self.topological_order if self.is_external(n) and isinstance(n.result_type, TensorType)]
        for name in sorted(symbol_names(graph)):
            if var(name) not in bound:
                carriers = [n for n in external if name in n.type.symbols]
                for n in [n for n in carriers if var(name) in n.shape][:1] or carriers:
                    bound.update(n.shape)
                    yield n
