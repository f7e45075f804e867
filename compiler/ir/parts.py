"""Running a graph in parts: what computes each of them, the calls into PyTorch behind it, and the sizes that these tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch

from compiler.errors import ArgumentError, VerifyError
from compiler.ir.binding import bind_symbols
from compiler.ir.graph import CONSTANT, Graph, Node
from compiler.ir.index import Dim, Index, evaluate, substitute, var, with_sizes
from compiler.ir.partition import Part, names_in, told_by
from compiler.ir.structure import Item, Leaf, Opaque
from compiler.ir.torch_types import as_tensor
from compiler.ir.types import TensorType

Compute: TypeAlias = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
Values: TypeAlias = dict[Node, torch.Tensor]
Sizes: TypeAlias = dict[str, int]


@dataclass(frozen=True)
class Condition:
    """What must hold of the sizes of a call; `message` says so to the user."""

    left: Dim
    relation: str
    right: Dim
    message: str

    @cached_property
    def names(self) -> frozenset[str]:
        return names_in((self.left, self.right))

    @cached_property
    def _code(self) -> Any:
        return compile(f"({self.left}) {self.relation} ({self.right})", "<condition>", "eval")

    def check(self, sizes: Mapping[str, int]) -> None:
        """ArgumentError where it does not hold."""
        if not eval(self._code, {"min": min}, sizes):
            told = ", ".join(f"{name} = {sizes[name]}" for name in sorted(self.names))
            raise ArgumentError(f"{self.message} ({told})")


@dataclass(frozen=True)
class Shapes:
    """How sizes are read off the shapes of some values: those that stand plainly for a dimension, and what else must fit."""

    values: tuple[Node, ...]
    plain: tuple[tuple[str, Node, int], ...]
    others: tuple[tuple[Dim, Node, int], ...]

    @staticmethod
    def of(values: Iterable[Node], known: Iterable[str] = ()) -> Shapes:
        """`known` are the sizes that have been told before."""
        told, plain, others = set(known), [], []
        given = tuple(values)
        for n in given:
            for axis, d in enumerate(n.shape):
                name = next(iter(names_in(d))) if isinstance(d, Index) and len(names_in(d)) == 1 else ""
                if name and name not in told and d == var(name):
                    plain.append((name, n, axis))
                    told.add(name)
                else:
                    others.append((d, n, axis))
        return Shapes(given, tuple(plain), tuple(others))

    def read(self, held: Values, sizes: Sizes) -> None:
        """Add what is told to `sizes`; ArgumentError where that contradicts others, VerifyError for values of another rank."""
        for n in self.values:
            if held[n].dim() != len(n.shape):
                raise VerifyError(
                    f"{n.name}: PyTorch returned shape {list(held[n].shape)} where the graph says {n.type}"
                )
        sizes.update({name: held[n].shape[axis] for name, n, axis in self.plain})
        if wrong := [o for o in self.others if not self._fits(*o, held, sizes)]:
            sizes.update(bind_symbols((substitute(d, sizes), held[n].shape[axis]) for d, n, axis in wrong))

    @staticmethod
    def _fits(d: Dim, n: Node, axis: int, held: Values, sizes: Sizes) -> bool:
        """Whether a dimension is what the sizes say; not where they do not say."""
        wanted = d if isinstance(d, int) else evaluate(d, sizes) if names_in(d) <= sizes.keys() else None
        return wanted == held[n].shape[axis]


@dataclass(frozen=True)
class Call:
    """A call between two parts: the values it tells sizes by, the conditions on these, and what makes functions of its graphs."""

    node: Node
    results: tuple[Node, ...]
    shapes: Shapes
    conditions: tuple[Condition, ...]
    body: Callable[[Graph], Compute]

    @cached_property
    def _attrs(self) -> dict[str, Any]:
        """The attributes, with functions for graphs."""
        return {k: self.body(v) if isinstance(v, Graph) else v for k, v in self.node.attrs.items()}

    @cached_property
    def _open(self) -> tuple[str, ...]:
        """The attributes that name sizes which have been told before."""
        declared = self.node.structure.declares if isinstance(self.node.structure, Opaque) else ""
        return tuple(k for k, v in self._attrs.items() if k != declared and names_in(v))

    def run(self, held: Values, sizes: Sizes) -> None:
        assert self.node.op.reference is not None
        attrs = self._attrs | {k: with_sizes(self._attrs[k], sizes) for k in self._open}
        with torch.no_grad():
            found = self.node.op.reference(*(held[o].detach() for o in self.node.operands), **attrs)
        results = (found,) if isinstance(found, torch.Tensor) else found
        for n in self.results:
            held[n] = results[n.attrs["index"] if isinstance(n.structure, Item) else 0]
        self.shapes.read(held, sizes)
        for condition in self.conditions:
            condition.check(sizes)


@dataclass(frozen=True)
class Parts:
    """A graph in parts and what computes each of them: `compute[k]` takes and gives tensors as `parts[k]` says.

    `body` makes a function of a graph that a call carries.
    """

    graph: Graph
    parts: tuple[Part, ...]
    compute: tuple[Compute, ...]
    body: Callable[[Graph], Compute]
    conditions: tuple[Condition, ...] = ()

    @cached_property
    def _inputs(self) -> Shapes:
        return Shapes.of(n for n in self.graph.inputs if n.type.symbols)

    @cached_property
    def _calls(self) -> tuple[tuple[Call, ...], ...]:
        """The calls behind each part."""
        known = set(self.graph.symbols)
        found = []
        for part in self.parts:
            calls = []
            for n in part.calls:
                results = (n,) if isinstance(n.result, TensorType) else tuple(dict.fromkeys(self.graph.users[n]))
                shapes = Shapes.of(results, known)
                known |= told_by(n)
                asked = (c for c in self.conditions if c.names <= known and not c.names.isdisjoint(told_by(n)))
                calls.append(Call(n, results, shapes, tuple(asked), self.body))
            found.append(tuple(calls))
        return tuple(found)

    @cached_property
    def _held(self) -> Values:
        """The constants that calls read and the graph returns."""
        read = {o for p in self.parts for c in p.calls for o in c.operands}.union(self.graph.outputs)
        return {n: as_tensor(n.attrs["value"].array, n.dtype) for n in read if n.op is CONSTANT}

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Sizes]:
        """The outputs for these inputs, and all sizes; ArgumentError where those that data tells contradict others."""
        if len(inputs) != len(self.graph.inputs):
            raise ArgumentError(f"expected {len(self.graph.inputs)} tensors, got {len(inputs)}")
        held = self._held | dict(zip(self.graph.inputs, inputs, strict=True))
        sizes: Sizes = {}
        self._inputs.read(held, sizes)
        for part, compute, calls in zip(self.parts, self.compute, self._calls, strict=True):
            if part.gives:
                held.update(zip(part.gives, compute([held[n] for n in part.takes]), strict=True))
            for call in calls:
                call.run(held, sizes)
        return [held[n].clone() if isinstance(n.structure, Leaf) else held[n] for n in self.graph.outputs], sizes
