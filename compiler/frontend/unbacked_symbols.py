"""What data tells while a program runs: PyTorch's unbacked symbols, as sizes and numbers of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import sympy
import torch

from compiler.frontend.promotion import SymbolicScalar, as_node
from compiler.frontend.registry import ConversionError
from compiler.frontend.sympy_conversion import float_node, from_sympy, to_bounds, to_dim
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.partition import defined_symbols, symbol_names
from compiler.ir.graph.runtime_assertion import RuntimeAssertion
from compiler.ir.symbolic.index_expr import Dim, substitute, var
from compiler.ir.torch_types import from_torch
from compiler.ir.types import TensorType, f64, i64

ITEM_OPERATORS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
"""Operators that make a number of a tensor's one element."""

RELATION_TEXT = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Le: "<=", sympy.Lt: "<", sympy.Ge: ">=", sympy.Gt: ">"}


@dataclass(frozen=True)
class UnbackedSymbols:
    """What is known of unbacked symbols, by name.

    `given` are those that inputs tell.  `sizes` says what a size is, `tellers` which value has it in its shape, `numbers` which
    node of rank 0 holds a number that is no size, `bounds` in which range a size lies.  `conditions` are those that PyTorch
    asserts, `equal` the equations among them.
    """

    input_symbols: set[str] = field(default_factory=set)
    sizes: dict[str, Dim] = field(default_factory=dict)
    definers: dict[str, Node] = field(default_factory=dict)
    scalars: dict[str, Node] = field(default_factory=dict)
    equations: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    runtime_assertions: list[RuntimeAssertion] = field(default_factory=list)

    def add_inputs(self, names: Iterable[str]) -> None:
        """Take note of symbols that the inputs of the graph tell."""
        self.input_symbols.update(filter(is_unbacked, names))
        self.sizes.update({n: var(n) for n in self.input_symbols})

    def dim(self, value: int | torch.SymInt) -> Dim:
        """A size; Refusal where something in it is not known."""
        return self._resolve(to_dim(value))

    def size_or_scalar(self, value: int | torch.SymInt) -> Dim | SymbolicScalar:
        """An integer that Python sees: a size, or a number that data decides."""
        if not isinstance(value, torch.SymInt) or not self._uses_scalars(value.node.expr):
            return self.dim(value)
        return SymbolicScalar(self._integer_node(value.node.expr))

    def float_or_scalar(self, value: float | torch.SymFloat) -> float | SymbolicScalar:
        """`value` as a float or as what computes it; Refusal for functions that have no op."""
        if not isinstance(value, torch.SymFloat):
            return value
        expression = value.node.expr
        return float(expression) if expression.is_number else SymbolicScalar(float_node(expression, self._integer_node))

    def _uses_scalars(self, e: Any) -> bool:
        return any(str(s) in self.scalars for s in e.free_symbols)

    def _integer_node(self, e: Any) -> Node:
        """A symbol, or an expression of integers, as a node of rank 0."""
        if str(e) in self.scalars:
            return self.scalars[str(e)]
        if not self._uses_scalars(e):
            return as_node(self._resolve(from_sympy(e)), i64)
        compute = {sympy.Add: ops.add, sympy.Mul: ops.mul}.get(e.func)
        if compute is None:
            raise ConversionError(f"the number {e} has no conversion")
        return reduce(compute, map(self._integer_node, e.args))

    def result_type(self, t: torch.Tensor) -> TensorType:
        """The type of what PyTorch makes of a (fake) tensor: it may tell sizes that were not known before."""
        for size in t.shape:
            for symbol in _size_symbols(size):
                self._define(symbol, var(str(symbol)), size)
        return tensor_type(t, self.dim)

    def record_definitions(self, theirs: Any, ours: Any) -> None:
        """Take note of what the value of a node tells; `theirs` is what PyTorch has found of it."""
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
        """The one element of `x` as a number, which PyTorch calls `value`."""
        meant = value.node.expr  # where PyTorch knows it to be something else, the number has had a name of its own
        symbol = meant if self._is_undefined(meant) else value.node._expr
        name, x = str(symbol), ops.reshape(x, shape=())
        if not self._is_undefined(symbol):
            return self.size_or_scalar(value) if isinstance(value, torch.SymInt) else self.float_or_scalar(value)
        if isinstance(value, torch.SymFloat) or _may_be_negative(value):
            self.scalars[name] = ops.as_dtype(x, i64 if isinstance(value, torch.SymInt) else f64)
            return SymbolicScalar(self.scalars[name])
        if meant != symbol:
            self.equations.setdefault(name, meant)
        self._define(symbol, var(name), value)
        self.definers[name] = ops.count(x, size=var(name))
        if self.sizes[name] != var(name):
            message = f"the program asserts that a number is {self.equations[name]}"
            self.runtime_assertions.append(RuntimeAssertion(var(name), "==", self.sizes[name], message))
        return self.sizes[name]

    def _is_undefined(self, e: Any) -> bool:
        """Whether an expression is a symbol for a number that data decides, of which nothing is known."""
        name = str(e)
        decided = e.is_Symbol and (is_unbacked(name) or name.startswith("zuf"))
        return decided and name not in self.sizes and name not in self.scalars

    def record_equation(self, condition: Any) -> None:
        """Take note of an asserted equation before anything is known: it says what the size that is told last must be."""
        if not isinstance(condition, sympy.Eq):
            return
        difference = condition.lhs - condition.rhs
        for symbol in sorted(_unbacked_symbols(difference), key=lambda s: -int(str(s)[1:])):
            factor = difference.coeff(symbol)
            rest = sympy.expand(difference - factor * symbol)
            if factor in (1, -1) and symbol not in rest.free_symbols:
                self.equations.setdefault(str(symbol), -factor * rest)
                return

    def record_assertion(self, condition: Any, message: str) -> None:
        """Take note of an asserted condition on sizes that data decides."""
        for part in condition.args if isinstance(condition, sympy.And) else ():
            self.record_assertion(part, message)
        relation = RELATION_TEXT.get(type(condition))
        if relation and any(is_unbacked(str(s)) for s in condition.free_symbols):
            try:
                left, right = (self._resolve(from_sympy(e)) for e in condition.args)
            except ConversionError:
                return  # of what has no size here
            if (relation, right) != (">=", 0):  # no size is negative
                self.runtime_assertions.append(RuntimeAssertion(left, relation, right, message))

    def _resolve(self, dim: Dim) -> Dim:
        missing = [n for n in symbol_names(dim) if is_unbacked(n) and n not in self.sizes]
        if missing:
            raise ConversionError(f"the size {missing[0]} depends on data")
        return substitute(dim, self.sizes)

    def required_definers(self, outputs: Sequence[Node], dims: Iterable[Dim] = ()) -> list[Node]:
        """What a graph with these outputs must return besides, so that everything is reached that tells its sizes and `dims`."""
        found: list[Node] = []
        if not self.definers:
            return found
        needed = symbol_names(tuple(dims)).union(*(c.symbols for c in self.runtime_assertions))
        while True:
            missing = (self.definers.get(n) for n in _undefined_symbols([*outputs, *found], needed))
            teller = next((n for n in missing if n is not None and n not in found), None)
            if teller is None:
                return found
            found.append(teller)


def tensor_type(t: torch.Tensor, dim: Callable[[int | torch.SymInt], Dim] = to_dim) -> TensorType:
    """The type of a (fake) tensor; Refusal where there is none."""
    try:
        return TensorType(from_torch(t.dtype), tuple(map(dim, t.shape)))
    except KeyError:
        raise ConversionError(f"{t.dtype} is not supported") from None


def _undefined_symbols(outputs: Sequence[Node], needed: frozenset[str]) -> list[str]:
    """Names in a graph, and others that are `asked` for, that none of its nodes tells."""
    graph = Graph((), tuple(outputs))
    defined = frozenset[str]().union(*map(defined_symbols, graph.nodes))
    return sorted(n for n in symbol_names(graph) | (needed - defined) if is_unbacked(n))


def is_unbacked(name: str) -> bool:
    """Whether a symbol of this name stands for a size that data decides."""
    return name.startswith("u") and name[1:].isdigit()


def _size_symbols(size: Any) -> list[Any]:
    """The unbacked symbols in a size."""
    return _unbacked_symbols(getattr(getattr(size, "node", None), "expr", None))


def _unbacked_symbols(expression: Any) -> list[Any]:
    return sorted((s for s in getattr(expression, "free_symbols", ()) if is_unbacked(str(s))), key=str)


def _may_be_negative(value: torch.SymInt) -> bool:
    bound = value.node.shape_env.bound_sympy(value.node.expr)
    return bool(bound.lower < 0)
