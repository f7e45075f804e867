"""Execution of a partitioned graph: subgraphs, the eager calls between them, and the sizes that these define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, TypeAlias

import torch

from compiler.errors import ArgumentError, VerifyError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.partition import Subgraph, defined_symbols, symbol_names
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.graph.structure import Leaf, Opaque, TupleGet
from compiler.ir.symbolic.binding import bind_symbols, substitute_symbols
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, evaluate, substitute, var
from compiler.ir.torch_types import as_tensor
from compiler.ir.types import TensorType

SubgraphFunction: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
NodeValues: TypeAlias = dict[Node, torch.Tensor]
SymbolValues: TypeAlias = dict[str, int]
EagerFunction: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]
CallBinder: TypeAlias = Callable[[Node, Mapping[str, Any]], EagerFunction]
"""Turns an op with attributes into a function of its operands."""


@dataclass(frozen=True)
class SymbolBinder:
    """Binds symbols to sizes from the shapes of `values`.

    `direct` lists (symbol, node, axis) of the dimensions that bind a symbol; `derived` lists (dimension, node, axis) of
    all others, which must match the bound symbols.
    """

    values: tuple[Node, ...]
    direct: tuple[tuple[str, Node, int], ...]
    derived: tuple[tuple[Dim, Node, int], ...]

    @staticmethod
    def from_nodes(values: Iterable[Node], known_symbols: Iterable[str] = ()) -> SymbolBinder:
        """Build the binder for the shapes of `values`; `known_symbols` are bound already."""
        nodes, bound = tuple(values), set(known_symbols)
        direct: list[tuple[str, Node, int]] = []
        derived: list[tuple[Dim, Node, int]] = []
        for n in nodes:
            for axis, d in enumerate(n.shape):
                name = next(iter(symbol_names(d))) if isinstance(d, IndexExpr) and len(symbol_names(d)) == 1 else ""
                if name and name not in bound and d == var(name):
                    direct.append((name, n, axis))
                    bound.add(name)
                else:
                    derived.append((d, n, axis))
        return SymbolBinder(nodes, tuple(direct), tuple(derived))

    def bind(self, node_values: NodeValues, sizes: SymbolValues) -> None:
        """Add the bound symbols to `sizes`; ArgumentError for contradictory sizes, VerifyError for a wrong rank."""
        for n in self.values:
            shape = list(node_values[n].shape)
            if len(shape) != len(n.shape):
                raise VerifyError(f"{n.name}: PyTorch returned shape {shape}, but the graph declares {n.type}")
        sizes.update({name: node_values[n].shape[axis] for name, n, axis in self.direct})
        if unmatched := [o for o in self.derived if not self._dim_matches(*o, node_values, sizes)]:
            sizes.update(bind_symbols((substitute(d, sizes), node_values[n].shape[axis]) for d, n, axis in unmatched))

    @staticmethod
    def _dim_matches(d: Dim, n: Node, axis: int, node_values: NodeValues, sizes: SymbolValues) -> bool:
        """Return True if `d` is determined by `sizes` and equal to the actual dimension."""
        expected = d if isinstance(d, int) else evaluate(d, sizes) if symbol_names(d) <= sizes.keys() else None
        return expected == node_values[n].shape[axis]


@dataclass(frozen=True)
class EagerCall:
    """An op that PyTorch runs between two subgraphs.

    `symbol_binder` binds the symbols in the shapes of `results`, and `assertions` are checked after it.
    """

    node: Node
    results: tuple[Node, ...]
    symbol_binder: SymbolBinder
    assertions: tuple[RuntimeAssertion, ...]
    bind_call: CallBinder

    @cached_property
    def _symbols(self) -> tuple[str, ...]:
        """The symbols in the op's attributes, where they do not give the shape of a result."""
        shape_attr = self.node.structure.shape_attr if isinstance(self.node.structure, Opaque) else ""
        others = (v for k, v in self.node.attrs.items() if k != shape_attr and not isinstance(v, Graph))
        return tuple(sorted(symbol_names(tuple(others))))

    @cached_property
    def _function(self) -> Callable[..., EagerFunction]:
        """The op as a function of its operands, for values of `_symbols`."""

        @lru_cache
        def function(*values: int) -> EagerFunction:
            sizes = dict(zip(self._symbols, values, strict=True))
            return self.bind_call(self.node, {k: substitute_symbols(v, sizes) for k, v in self.node.attrs.items()})

        return function

    def run(self, node_values: NodeValues, sizes: SymbolValues) -> None:
        """Run the op and add its results to `node_values` and the symbols it defines to `sizes`."""
        function = self._function(*(sizes[s] for s in self._symbols))
        with torch.no_grad():
            results = function(*(node_values[o] for o in self.node.operands))
        for n in self.results:
            node_values[n] = results[n.attrs["index"] if isinstance(n.structure, TupleGet) else 0]
        self.symbol_binder.bind(node_values, sizes)
        for assertion in self.assertions:
            assertion.check(sizes)


@dataclass(frozen=True)
class PartitionExecutor:
    """A partitioned graph with a function for each subgraph.

    `subgraph_functions[k]` maps the inputs of `subgraphs[k]` to its outputs.  `bind_call` turns the op of an eager call into a
    function of its operands.
    """

    graph: Graph
    subgraphs: tuple[Subgraph, ...]
    subgraph_functions: tuple[SubgraphFunction, ...]
    bind_call: CallBinder
    assertions: tuple[RuntimeAssertion, ...] = ()

    @cached_property
    def _input_binder(self) -> SymbolBinder:
        return SymbolBinder.from_nodes(n for n in self.graph.inputs if n.type.symbols)

    @cached_property
    def _eager_calls(self) -> tuple[tuple[EagerCall, ...], ...]:
        """The eager calls after each subgraph."""
        bound = set(self.graph.symbols)
        result = []
        for subgraph in self.subgraphs:
            calls = []
            for n in subgraph.eager_calls:
                results = (n,) if isinstance(n.result_type, TensorType) else tuple(dict.fromkeys(self.graph.users[n]))
                binder, defined = SymbolBinder.from_nodes(results, bound), defined_symbols(n)
                bound |= defined
                ready = (a for a in self.assertions if a.symbols <= bound and not a.symbols.isdisjoint(defined))
                calls.append(EagerCall(n, results, binder, tuple(ready), self.bind_call))
            result.append(tuple(calls))
        return tuple(result)

    @cached_property
    def _constants_on(self) -> Callable[[torch.device], NodeValues]:
        """The constants that eager calls read or the graph returns, as a function of the device; moved there once."""
        read = {o for s in self.subgraphs for c in s.eager_calls for o in c.operands}.union(self.graph.outputs)
        values = {n: as_tensor(n.attrs["value"].array, n.dtype) for n in read if n.op is CONSTANT}
        return cache(lambda device: {n: x.to(device) for n, x in values.items()})

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], SymbolValues]:
        """Return the outputs and the values of all symbols; ArgumentError if sizes contradict each other."""
        if len(inputs) != len(self.graph.inputs):
            raise ArgumentError(f"expected {len(self.graph.inputs)} tensors, got {len(inputs)}")
        device = next((x.device for x in inputs if not x.is_cpu), torch.device("cpu"))
        values = self._constants_on(device) | dict(zip(self.graph.inputs, inputs, strict=True))
        sizes: SymbolValues = {}
        self._input_binder.bind(values, sizes)
        for subgraph, function, calls in zip(self.subgraphs, self.subgraph_functions, self._eager_calls, strict=True):
            if subgraph.outputs:
                values.update(zip(subgraph.outputs, function([values[n] for n in subgraph.inputs]), strict=True))
            for call in calls:
                call.run(values, sizes)
        return [values[n].clone() if isinstance(n.structure, Leaf) else values[n] for n in self.graph.outputs], sizes
