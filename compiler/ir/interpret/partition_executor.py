"""Running a graph in parts: what computes each of them, the calls into PyTorch behind it, and the sizes that these tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch

from compiler.errors import ArgumentError, VerifyError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.partition import Subgraph, defined_symbols, symbol_names
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.graph.structure import Leaf, Opaque, TupleGet
from compiler.ir.symbolic.binding import bind_symbols
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, evaluate, substitute, substitute_symbols, var
from compiler.ir.torch_types import as_tensor
from compiler.ir.types import TensorType

SubgraphFunction: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
NodeValues: TypeAlias = dict[Node, torch.Tensor]
SymbolValues: TypeAlias = dict[str, int]


@dataclass(frozen=True)
class SymbolBinder:
    """How sizes are read off the shapes of some values: those that stand plainly for a dimension, and what else must fit."""

    values: tuple[Node, ...]
    direct: tuple[tuple[str, Node, int], ...]
    derived: tuple[tuple[Dim, Node, int], ...]

    @staticmethod
    def from_nodes(values: Iterable[Node], known_symbols: Iterable[str] = ()) -> SymbolBinder:
        """`known` are the sizes that have been told before."""
        told, plain, others = set(known_symbols), [], []
        given = tuple(values)
        for n in given:
            for axis, d in enumerate(n.shape):
                name = next(iter(symbol_names(d))) if isinstance(d, IndexExpr) and len(symbol_names(d)) == 1 else ""
                if name and name not in told and d == var(name):
                    plain.append((name, n, axis))
                    told.add(name)
                else:
                    others.append((d, n, axis))
        return SymbolBinder(given, tuple(plain), tuple(others))

    def bind(self, node_values: NodeValues, sizes: SymbolValues) -> None:
        """Add what is told to `sizes`; ArgumentError where that contradicts others, VerifyError for values of another rank."""
        for n in self.values:
            if node_values[n].dim() != len(n.shape):
                raise VerifyError(
                    f"{n.name}: PyTorch returned shape {list(node_values[n].shape)} where the graph says {n.type}"
                )
        sizes.update({name: node_values[n].shape[axis] for name, n, axis in self.direct})
        if wrong := [o for o in self.derived if not self._dim_matches(*o, node_values, sizes)]:
            sizes.update(bind_symbols((substitute(d, sizes), node_values[n].shape[axis]) for d, n, axis in wrong))

    @staticmethod
    def _dim_matches(d: Dim, n: Node, axis: int, node_values: NodeValues, sizes: SymbolValues) -> bool:
        """Whether a dimension is what the sizes say; not where they do not say."""
        wanted = d if isinstance(d, int) else evaluate(d, sizes) if symbol_names(d) <= sizes.keys() else None
        return wanted == node_values[n].shape[axis]


@dataclass(frozen=True)
class EagerCall:
    """A call between two parts: the values it tells sizes by, the conditions on these, and what makes functions of its graphs."""

    node: Node
    results: tuple[Node, ...]
    symbol_binder: SymbolBinder
    assertions: tuple[RuntimeAssertion, ...]
    compile_body: Callable[[Graph], SubgraphFunction]

    @cached_property
    def _attrs(self) -> dict[str, Any]:
        """The attributes, with functions for graphs."""
        return {k: self.compile_body(v) if isinstance(v, Graph) else v for k, v in self.node.attrs.items()}

    @cached_property
    def _symbolic_attrs(self) -> tuple[str, ...]:
        """The attributes that name sizes which have been told before."""
        declared = self.node.structure.shape_attr if isinstance(self.node.structure, Opaque) else ""
        return tuple(k for k, v in self._attrs.items() if k != declared and symbol_names(v))

    def run(self, node_values: NodeValues, sizes: SymbolValues) -> None:
        assert self.node.op.reference is not None
        attrs = self._attrs | {k: substitute_symbols(self._attrs[k], sizes) for k in self._symbolic_attrs}
        with torch.no_grad():
            found = self.node.op.reference(*(node_values[o].detach() for o in self.node.operands), **attrs)
        results = (found,) if isinstance(found, torch.Tensor) else found
        for n in self.results:
            node_values[n] = results[n.attrs["index"] if isinstance(n.structure, TupleGet) else 0]
        self.symbol_binder.bind(node_values, sizes)
        for condition in self.assertions:
            condition.check(sizes)


@dataclass(frozen=True)
class PartitionExecutor:
    """A graph in parts and what computes each of them: `compute[k]` takes and gives tensors as `parts[k]` says.

    `body` makes a function of a graph that a call carries.
    """

    graph: Graph
    subgraphs: tuple[Subgraph, ...]
    subgraph_functions: tuple[SubgraphFunction, ...]
    compile_body: Callable[[Graph], SubgraphFunction]
    assertions: tuple[RuntimeAssertion, ...] = ()

    @cached_property
    def _input_binder(self) -> SymbolBinder:
        return SymbolBinder.from_nodes(n for n in self.graph.inputs if n.type.symbols)

    @cached_property
    def _eager_calls(self) -> tuple[tuple[EagerCall, ...], ...]:
        """The calls behind each part."""
        known = set(self.graph.symbols)
        found = []
        for part in self.subgraphs:
            calls = []
            for n in part.eager_calls:
                results = (n,) if isinstance(n.result_type, TensorType) else tuple(dict.fromkeys(self.graph.users[n]))
                shapes = SymbolBinder.from_nodes(results, known)
                known |= defined_symbols(n)
                asked = (
                    c for c in self.assertions if c.symbols <= known and not c.symbols.isdisjoint(defined_symbols(n))
                )
                calls.append(EagerCall(n, results, shapes, tuple(asked), self.compile_body))
            found.append(tuple(calls))
        return tuple(found)

    @cached_property
    def _constant_values(self) -> NodeValues:
        """The constants that calls read and the graph returns."""
        read = {o for p in self.subgraphs for c in p.eager_calls for o in c.operands}.union(self.graph.outputs)
        return {n: as_tensor(n.attrs["value"].array, n.dtype) for n in read if n.op is CONSTANT}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], SymbolValues]:
        """The outputs for these inputs, and all sizes; ArgumentError where those that data tells contradict others."""
        if len(inputs) != len(self.graph.inputs):
            raise ArgumentError(f"expected {len(self.graph.inputs)} tensors, got {len(inputs)}")
        held = self._constant_values | dict(zip(self.graph.inputs, inputs, strict=True))
        sizes: SymbolValues = {}
        self._input_binder.bind(held, sizes)
        for part, compute, calls in zip(self.subgraphs, self.subgraph_functions, self._eager_calls, strict=True):
            if part.outputs:
                held.update(zip(part.outputs, compute([held[n] for n in part.inputs]), strict=True))
            for call in calls:
                call.run(held, sizes)
        return [held[n].clone() if isinstance(n.structure, Leaf) else held[n] for n in self.graph.outputs], sizes
