"""What data tells while a program runs: PyTorch's unbacked symbols, as sizes and numbers of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import sympy
import torch

from compiler.frontend.promotion import Scalar, as_node
from compiler.frontend.registry import Refusal
from compiler.frontend.symbols import floating, from_sympy, to_bounds, to_dim
from compiler.ir import ops
from compiler.ir.graph import Graph, Node
from compiler.ir.index import Dim, substitute, var
from compiler.ir.partition import names_in, told_by
from compiler.ir.parts import Condition
from compiler.ir.torch_types import from_torch
from compiler.ir.types import TensorType, f64, i64

ITEMS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})
"""Operators that make a number of a tensor's one element."""

RELATIONS = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Le: "<=", sympy.Lt: "<", sympy.Ge: ">=", sympy.Gt: ">"}


@dataclass(frozen=True)
class Told:
    """What is known of unbacked symbols, by name.

    `given` are those that inputs tell.  `sizes` says what a size is, `tellers` which value has it in its shape, `numbers` which
    node of rank 0 holds a number that is no size, `bounds` in which range a size lies.  `conditions` are those that PyTorch
    asserts, `equal` the equations among them.
    """

    given: set[str] = field(default_factory=set)
    sizes: dict[str, Dim] = field(default_factory=dict)
    tellers: dict[str, Node] = field(default_factory=dict)
    numbers: dict[str, Node] = field(default_factory=dict)
    equal: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)

    def take(self, names: Iterable[str]) -> None:
        """Take note of symbols that the inputs of the graph tell."""
        self.given.update(filter(is_unbacked, names))
        self.sizes.update({n: var(n) for n in self.given})

    def dim(self, value: int | torch.SymInt) -> Dim:
        """A size; Refusal where something in it is not known."""
        return self._known(to_dim(value))

    def size(self, value: int | torch.SymInt) -> Dim | Scalar:
        """An integer that Python sees: a size, or a number that data decides."""
        if not isinstance(value, torch.SymInt) or not self._has_number(value.node.expr):
            return self.dim(value)
        return Scalar(self._whole(value.node.expr))

    def number(self, value: float | torch.SymFloat) -> float | Scalar:
        """`value` as a float or as what computes it; Refusal for functions that have no op."""
        if not isinstance(value, torch.SymFloat):
            return value
        expression = value.node.expr
        return float(expression) if expression.is_number else Scalar(floating(expression, self._whole))

    def _has_number(self, e: Any) -> bool:
        return any(str(s) in self.numbers for s in e.free_symbols)

    def _whole(self, e: Any) -> Node:
        """A symbol, or an expression of integers, as a node of rank 0."""
        if str(e) in self.numbers:
            return self.numbers[str(e)]
        if not self._has_number(e):
            return as_node(self._known(from_sympy(e)), i64)
        compute = {sympy.Add: ops.add, sympy.Mul: ops.mul}.get(e.func)
        if compute is None:
            raise Refusal(f"the number {e} has no conversion")
        return reduce(compute, map(self._whole, e.args))

    def type(self, t: torch.Tensor) -> TensorType:
        """The type of what PyTorch makes of a (fake) tensor: it may tell sizes that were not known before."""
        for size in t.shape:
            for symbol in _unbacked(size):
                self._learn(symbol, var(str(symbol)), size)
        return tensor_type(t, self.dim)

    def learn(self, theirs: Any, ours: Any) -> None:
        """Take note of what the value of a node tells; `theirs` is what PyTorch has found of it."""
        pairs = zip(theirs, ours, strict=False) if isinstance(ours, tuple) else [(theirs, ours)]
        for tensor, node in pairs:
            if not isinstance(tensor, torch.Tensor) or not isinstance(node, Node):
                continue
            size: Any
            for size, dim in zip(tensor.shape, node.shape, strict=False):
                for symbol in _unbacked(size):
                    if size.node.expr == symbol:
                        self._learn(symbol, dim, size)
                    if str(symbol) not in self.given:
                        self.tellers.setdefault(str(symbol), node)

    def _learn(self, symbol: Any, dim: Dim, size: Any) -> None:
        name = str(symbol)
        if name in self.sizes:
            return
        self.sizes[name] = dim
        self.bounds[name] = to_bounds(size.node.shape_env.bound_sympy(symbol))
        if name in self.equal and all(s in self.sizes for s in map(str, _names_of(self.equal[name]))):
            self.sizes[name] = self._known(from_sympy(self.equal[name]))

    def item(self, x: Node, value: torch.SymInt | torch.SymFloat) -> Any:
        """The one element of `x` as a number, which PyTorch calls `value`."""
        meant = value.node.expr  # where PyTorch knows it to be something else, the number has had a name of its own
        symbol = meant if self._is_new(meant) else value.node._expr
        name, x = str(symbol), ops.reshape(x, shape=())
        if not self._is_new(symbol):
            return self.size(value) if isinstance(value, torch.SymInt) else self.number(value)
        if isinstance(value, torch.SymFloat) or _may_be_negative(value):
            self.numbers[name] = ops.as_dtype(x, i64 if isinstance(value, torch.SymInt) else f64)
            return Scalar(self.numbers[name])
        if meant != symbol:
            self.equal.setdefault(name, meant)
        self._learn(symbol, var(name), value)
        self.tellers[name] = ops.count(x, size=var(name))
        if self.sizes[name] != var(name):
            message = f"the program asserts that a number is {self.equal[name]}"
            self.conditions.append(Condition(var(name), "==", self.sizes[name], message))
        return self.sizes[name]

    def _is_new(self, e: Any) -> bool:
        """Whether an expression is a symbol for a number that data decides, of which nothing is known."""
        name = str(e)
        decided = e.is_Symbol and (is_unbacked(name) or name.startswith("zuf"))
        return decided and name not in self.sizes and name not in self.numbers

    def equate(self, condition: Any) -> None:
        """Take note of an asserted equation before anything is known: it says what the size that is told last must be."""
        if not isinstance(condition, sympy.Eq):
            return
        difference = condition.lhs - condition.rhs
        for symbol in sorted(_names_of(difference), key=lambda s: -int(str(s)[1:])):
            factor = difference.coeff(symbol)
            rest = sympy.expand(difference - factor * symbol)
            if factor in (1, -1) and symbol not in rest.free_symbols:
                self.equal.setdefault(str(symbol), -factor * rest)
                return

    def asserts(self, condition: Any, message: str) -> None:
        """Take note of an asserted condition on sizes that data decides."""
        for part in condition.args if isinstance(condition, sympy.And) else ():
            self.asserts(part, message)
        relation = RELATIONS.get(type(condition))
        if relation and any(is_unbacked(str(s)) for s in condition.free_symbols):
            try:
                left, right = (self._known(from_sympy(e)) for e in condition.args)
            except Refusal:
                return  # of what has no size here
            if (relation, right) != (">=", 0):  # no size is negative
                self.conditions.append(Condition(left, relation, right, message))

    def _known(self, dim: Dim) -> Dim:
        missing = [n for n in names_in(dim) if is_unbacked(n) and n not in self.sizes]
        if missing:
            raise Refusal(f"the size {missing[0]} depends on data")
        return substitute(dim, self.sizes)

    def telling(self, outputs: Sequence[Node], dims: Iterable[Dim] = ()) -> list[Node]:
        """What a graph with these outputs must return besides, so that everything is reached that tells its sizes and `dims`."""
        found: list[Node] = []
        if not self.tellers:
            return found
        asked = names_in(tuple(dims)).union(*(c.names for c in self.conditions))
        while True:
            missing = (self.tellers.get(n) for n in _untold([*outputs, *found], asked))
            teller = next((n for n in missing if n is not None and n not in found), None)
            if teller is None:
                return found
            found.append(teller)


def tensor_type(t: torch.Tensor, dim: Callable[[int | torch.SymInt], Dim] = to_dim) -> TensorType:
    """The type of a (fake) tensor; Refusal where there is none."""
    try:
        return TensorType(from_torch(t.dtype), tuple(map(dim, t.shape)))
    except KeyError:
        raise Refusal(f"{t.dtype} is not supported") from None


def _untold(outputs: Sequence[Node], asked: frozenset[str]) -> list[str]:
    """Names in a graph, and others that are `asked` for, that none of its nodes tells."""
    graph = Graph((), tuple(outputs))
    told = frozenset[str]().union(*map(told_by, graph.nodes))
    return sorted(n for n in names_in(graph) | (asked - told) if is_unbacked(n))


def is_unbacked(name: str) -> bool:
    """Whether a symbol of this name stands for a size that data decides."""
    return name.startswith("u") and name[1:].isdigit()


def _unbacked(size: Any) -> list[Any]:
    """The unbacked symbols in a size."""
    return _names_of(getattr(getattr(size, "node", None), "expr", None))


def _names_of(expression: Any) -> list[Any]:
    return sorted((s for s in getattr(expression, "free_symbols", ()) if is_unbacked(str(s))), key=str)


def _may_be_negative(value: torch.SymInt) -> bool:
    bound = value.node.shape_env.bound_sympy(value.node.expr)
    return bool(bound.lower < 0)
