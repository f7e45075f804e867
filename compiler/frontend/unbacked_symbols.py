"""PyTorch's unbacked symbols, whose values only the data of a run decides, as sizes and numbers of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from compiler.frontend.promotion import SymbolicScalar, as_node
from compiler.frontend.registry import ConversionError
from compiler.frontend.sympy_conversion import condition_node, float_node, from_sympy, integer_node, to_bounds, to_dim
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.partition import defined_symbols, symbol_names
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.symbolic.index_expr import Dim, substitute, var
from compiler.ir.torch_types import element_type
from compiler.ir.types import TensorType, f64, i64

ITEM_OPERATORS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
"""Operators that return the single element of a tensor as a Python number."""

RELATION_TEXT = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Le: "<=", sympy.Lt: "<", sympy.Ge: ">=", sympy.Gt: ">"}
"""Relation of a `RuntimeAssertion` for each sympy relation."""


@dataclass(frozen=True)
class UnbackedSymbols:
    """Definitions of unbacked symbols, by name.

    `input_symbols` are defined by shapes of inputs.  `sizes` maps a symbol that is a size to its value, `definers` to the
    node whose shape defines it, `bounds` to its inclusive range.  `scalars` maps a symbol that is not a size to its node
    of rank 0.  `equations` are asserted definitions of symbols, `runtime_assertions` all asserted conditions.
    """

    input_symbols: set[str] = field(default_factory=set)
    sizes: dict[str, Dim] = field(default_factory=dict)
    definers: dict[str, Node] = field(default_factory=dict)
    scalars: dict[str, Node] = field(default_factory=dict)
    equations: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    runtime_assertions: list[RuntimeAssertion] = field(default_factory=list)

    def add_inputs(self, names: Iterable[str]) -> None:
        """Record the symbols that the inputs of the graph define."""
        self.input_symbols.update(filter(is_unbacked, names))
        self.sizes.update({n: var(n) for n in self.input_symbols})

    def dim(self, value: int | torch.SymInt) -> Dim:
        """Return `value` as a size; ConversionError if it contains an undefined symbol."""
        return self._resolve(to_dim(value))

    def size_or_scalar(self, value: int | torch.SymInt) -> Dim | SymbolicScalar:
        """Return an integer of the program as a size, or as a scalar node if it uses symbols that are not sizes."""
        if not isinstance(value, torch.SymInt) or not self._uses_scalars(value.node.expr):
            return self.dim(value)
        return SymbolicScalar(self._integer_node(value.node.expr))

    def float_or_scalar(self, value: float | torch.SymFloat) -> float | SymbolicScalar:
        """Return `value` as a float or a scalar node; ConversionError for functions that have no op."""
        if not isinstance(value, torch.SymFloat):
            return value
        expression = value.node.expr
        return float(expression) if expression.is_number else SymbolicScalar(float_node(expression, self._integer_node))

    def condition(self, value: torch.SymBool) -> bool | SymbolicScalar:
        """Return a condition on numbers as a bool or a scalar node; ConversionError for functions that have no op."""
        expression = value.node.expr
        if expression in (sympy.true, sympy.false):
            return bool(expression)
        return SymbolicScalar(condition_node(expression, self._integer_node))

    def _uses_scalars(self, e: Any) -> bool:
        return any(str(s) in self.scalars for s in e.free_symbols)

    def _integer_node(self, e: Any) -> Node:
        """Return an integer sympy expression as a node i64[], a condition as bool[]."""
        if str(e) in self.scalars:
            return self.scalars[str(e)]
        if not self._uses_scalars(e):
            return as_node(self._resolve(from_sympy(e)), i64)
        return integer_node(e, self._integer_node)

    def result_type(self, t: torch.Tensor) -> TensorType:
        """Return the type of a (fake) tensor, a result of PyTorch, whose shape may define new symbols."""
        for size in t.shape:
            for symbol in _size_symbols(size):
                self._define(symbol, var(str(symbol)), size)
        return tensor_type(t, self.dim)

    def record_definitions(self, theirs: Any, ours: Any) -> None:
        """Record the symbols that the shape of node `ours` defines; `theirs` is its fake tensor."""
        pairs = zip(theirs, ours, strict=False) if isinstance(ours, tuple) else [(theirs, ours)]
        for tensor, node in pairs:
            if not isinstance(tensor, torch.Tensor) or not isinstance(node, Node):
                continue
            size: Any
            for size, dim in zip(tensor.shape, node.shape, strict=False):
                for symbol in _size_symbols(size):
                    if size.node.expr == symbol:
                        self._define(symbol, dim, size)
                    if str(symbol) not in self.input_symbols:
                        self.definers.setdefault(str(symbol), node)

    def _define(self, symbol: Any, dim: Dim, size: Any) -> None:
        name = str(symbol)
        if name in self.sizes:
            return
        self.sizes[name] = dim
        self.bounds[name] = to_bounds(size.node.shape_env.bound_sympy(symbol))
        if name in self.equations and all(s in self.sizes for s in map(str, _unbacked_symbols(self.equations[name]))):
            self.sizes[name] = self._resolve(from_sympy(self.equations[name]))

    def define_item(self, x: Node, value: torch.SymInt | torch.SymFloat) -> Any:
        """Define the single element of `x` as the number `value`; return it as a size or a scalar."""
        simplified = value.node.expr  # differs from the original symbol `_expr` if PyTorch knows an equation for it
        symbol = simplified if self._is_undefined(simplified) else value.node._expr
        name, x = str(symbol), ops.reshape(x, shape=())
        if not self._is_undefined(symbol):
            return self.size_or_scalar(value) if isinstance(value, torch.SymInt) else self.float_or_scalar(value)
        if isinstance(value, torch.SymFloat) or _may_be_negative(value):
            self.scalars[name] = ops.as_dtype(x, i64 if isinstance(value, torch.SymInt) else f64)
            return SymbolicScalar(self.scalars[name])
        if simplified != symbol:
            self.equations.setdefault(name, simplified)
        self._define(symbol, var(name), value)
        self.definers[name] = ops.sized_arange(x, size=var(name))
        if self.sizes[name] != var(name):
            message = f"runtime assertion: value must equal {self.equations[name]}"
            self.runtime_assertions.append(RuntimeAssertion(var(name), "==", self.sizes[name], message))
        return self.sizes[name]

    def _is_undefined(self, e: Any) -> bool:
        """Return True if an expression is an unbacked symbol (`u0`, or `zuf0` for floats) without a definition."""
        name = str(e)
        unbacked = e.is_Symbol and (is_unbacked(name) or name.startswith("zuf"))
        return unbacked and name not in self.sizes and name not in self.scalars

    def record_equation(self, condition: Any) -> None:
        """Record an asserted equation before import, solved for the symbol that is defined last."""
        if not isinstance(condition, sympy.Eq):
            return
        difference = condition.lhs - condition.rhs
        for symbol in sorted(_unbacked_symbols(difference), key=lambda s: -int(str(s)[1:])):
            factor = difference.coeff(symbol)
            others = sympy.expand(difference - factor * symbol)
            if factor in (1, -1) and symbol not in others.free_symbols:
                self.equations.setdefault(str(symbol), -factor * others)
                return

    def record_assertion(self, condition: Any, message: str) -> None:
        """Record an asserted condition on unbacked sizes."""
        for part in condition.args if isinstance(condition, sympy.And) else ():
            self.record_assertion(part, message)
        relation = RELATION_TEXT.get(type(condition))
        if relation and any(is_unbacked(str(s)) for s in condition.free_symbols):
            try:
                left, right = (self._resolve(from_sympy(e)) for e in condition.args)
            except ConversionError:
                return  # a condition on numbers that are not sizes
            if (relation, right) != (">=", 0):  # sizes are never negative
                message = "; ".join([message, *self._origins(condition)])
                self.runtime_assertions.append(RuntimeAssertion(left, relation, right, message))

    def _origins(self, condition: Any) -> list[str]:
        """Return a text for each unbacked size in `condition` whose definer has a line in the user's program."""
        definers = {str(s): self.definers.get(str(s)) for s in _unbacked_symbols(condition)}
        return [f"data decides {name} at {node.loc}" for name, node in definers.items() if node and node.loc]

    def _resolve(self, dim: Dim) -> Dim:
        missing = [n for n in symbol_names(dim) if is_unbacked(n) and n not in self.sizes]
        if missing:
            raise ConversionError(f"{missing[0]} is an undefined unbacked symbol (a data-dependent size)")
        return substitute(dim, self.sizes)

    def required_definers(self, outputs: Sequence[Node], dims: Iterable[Dim] = ()) -> list[Node]:
        """Return the additional outputs that a graph needs so that it contains a definer of each of its symbols.

        `dims` are further sizes that the caller needs; symbols of runtime assertions count too.
        """
        definers: list[Node] = []
        if not self.definers:
            return definers
        needed = symbol_names(tuple(dims)).union(*(c.symbols for c in self.runtime_assertions))
        while True:
            missing = (self.definers.get(n) for n in _undefined_symbols([*outputs, *definers], needed))
            definer = next((n for n in missing if n is not None and n not in definers), None)
            if definer is None:
                return definers
            definers.append(definer)


def tensor_type(t: torch.Tensor, dim: Callable[[int | torch.SymInt], Dim] = to_dim, name: str = "") -> TensorType:
    """Return the type of a (fake) tensor called `name`; TypeRuleError if it is sparse or its dtype not supported."""
    return TensorType(element_type(t, name), tuple(map(dim, t.shape)))


def _undefined_symbols(outputs: Sequence[Node], needed: frozenset[str]) -> list[str]:
    """Return the unbacked symbols in a graph, and in `needed`, that none of its nodes defines."""
    graph = Graph((), tuple(outputs))
    defined = frozenset[str]().union(*map(defined_symbols, graph.nodes))
    return sorted(n for n in symbol_names(graph) | (needed - defined) if is_unbacked(n))


def is_unbacked(name: str) -> bool:
    """Return True if `name` is that of an unbacked integer symbol, such as `u0`."""
    return name.startswith("u") and name[1:].isdigit()


def _size_symbols(size: Any) -> list[Any]:
    """Return the unbacked symbols in a size."""
    return _unbacked_symbols(getattr(getattr(size, "node", None), "expr", None))


def _unbacked_symbols(expression: Any) -> list[Any]:
    return sorted((s for s in getattr(expression, "free_symbols", ()) if is_unbacked(str(s))), key=str)


def _may_be_negative(value: torch.SymInt) -> bool:
    bound = value.node.shape_env.bound_sympy(value.node.expr)
    return bool(bound.lower < 0)
