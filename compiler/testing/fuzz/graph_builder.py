"""A random graph while it grows, one call of an op after the other.

The operands of a call are values that the graph has already, brought to the type that is asked for by casts and views where
need be, or new inputs and constants.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.ir import ops
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPERAND_KINDS, OPS, Node, Op, constant_node, input_node
from compiler.ir.graph.structure import Elementwise, Leaf
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import DTYPES, TensorType
from compiler.testing.fuzz.inputs import index_operands, random_elements
from compiler.testing.fuzz.op_calls import CallMutator, OpCall, formal_operands, numel

STRUCTURE_WEIGHTS: Mapping[str, int] = {"Elementwise": 30, "Reduction": 18, "Composite": 22, "IndexMap": 22}
"""How often a structure is drawn; all others have weight 4."""


def ops_by_structure() -> dict[str, list[Op]]:
    """The ops that can be drawn, by the kind of their structure."""
    kinds: dict[str, list[Op]] = {}
    for op in OPS.values():
        if op.samples and not isinstance(op.structure, Leaf):
            kinds.setdefault(type(op.structure).__name__, []).append(op)
    return kinds


@dataclass
class GraphBuilder:
    """A graph while it grows."""

    rng: random.Random
    array_rng: np.random.Generator
    values: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    ops_by_structure: dict[str, list[Op]] = field(default_factory=ops_by_structure)

    def __post_init__(self) -> None:
        self.mutator = CallMutator(self.rng)

    def add_random_call(self) -> None:
        """Add the call of one more op."""
        kind = self.rng.choices(
            list(self.ops_by_structure), [STRUCTURE_WEIGHTS.get(k, 4) for k in self.ops_by_structure]
        )[0]
        op = self.rng.choice(self.ops_by_structure[kind])
        at, value, call = self.draw_call(op)
        node = call.try_build()
        if node is None:
            return
        operands = [
            value if k == at and value is not None else self.make_operand(k, t, node) for k, t in enumerate(call.types)
        ]
        self.add(op(*operands, **call.attrs))

    def add(self, node: Node) -> None:
        """Enter the results of `node`."""
        self.values += ops.result_nodes(node)

    def loop_body_builder(self) -> GraphBuilder:
        """The body of a loop, in which no number is a position: what stays the same there would need its bounds."""
        kinds = {k: v for k, v in self.ops_by_structure.items() if k not in ("Gather", "Scatter", "Opaque", "Item")}
        return GraphBuilder(self.rng, self.array_rng, ops_by_structure=kinds)

    # the call

    def draw_call(self, op: Op) -> tuple[int, Node | None, OpCall]:
        """A call of `op`, and perhaps a value of the graph that fits one of its operands."""
        sample = self.rng.choice(op.samples)
        call = OpCall(op, tuple(parse_type(t) for t in sample.types), dict(sample.attrs))
        fixed, value = -1, None
        if call.types and self.values and self.rng.random() < 0.85:
            k = 0 if self.rng.random() < 0.75 else self.rng.randrange(len(call.types))
            chosen = self.recent_value()
            anchored = self.fit_call(call, k, chosen)
            if anchored is not None:
                fixed, value, call = k, chosen, anchored
        for _ in range(self.rng.choice((0, 2, 4, 8))):
            changed = self.mutator.mutate(call, fixed)
            call = changed if changed.try_build() is not None else call
        return fixed, value, call

    def recent_value(self) -> Node:
        """A value of the graph, mostly a late one."""
        return self.values[-1 - min(int(self.rng.expovariate(0.5)), len(self.values) - 1)]

    def fit_call(self, call: OpCall, k: int, value: Node) -> OpCall | None:
        """`call` with operand number `k` of the type of `value`."""
        formal, old, new = formal_operands(call.op, len(call.types))[k], call.types[k], value.type
        if not OPERAND_KINDS[formal.kind](new.dtype):
            return None
        dtypes = [
            new.dtype
            if n == k
            or (t.dtype == old.dtype and not (f.independent_dtype or formal.independent_dtype or f.kind == "bool"))
            else t.dtype
            for n, (f, t) in enumerate(zip(formal_operands(call.op, len(call.types)), call.types, strict=True))
        ]
        if isinstance(call.op.structure, Elementwise):
            shapes = [new.shape if n == k else self.broadcastable_shape(new.shape) for n in range(len(dtypes))]
        else:
            sizes = dict(zip(reversed(old.shape), reversed(new.shape), strict=False))
            shapes = [
                new.shape if n == k else tuple(sizes.get(d, d) for d in t.shape) for n, t in enumerate(call.types)
            ]
        made = replace(call, types=tuple(map(TensorType, dtypes, shapes)))
        for _ in range(12):
            if made.try_build() is not None:
                return made
            made = self.mutator.mutate(made, k)
        return None

    def broadcastable_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """A shape that broadcasts to `shape`."""
        if self.rng.random() < 0.5:
            return tuple(shape)
        cut = self.rng.randrange(len(shape) + 1)
        return tuple(1 if self.rng.random() < 0.3 else d for d in shape[cut:])

    # its operands

    def make_operand(self, k: int, t: TensorType, node: Node) -> Node:
        """A value of type `t` for operand number `k` of `node`."""
        extent, wrap = index_operands(node).get(k, (None, False))
        way = self.rng.random()
        if extent is not None:
            return self.make_indices(t, extent, wrap, way)
        return self.make_value(t)

    def make_value(self, t: TensorType) -> Node:
        """A value of type `t`: one that is there, perhaps cast and cut to fit, a constant, or a new input."""
        way = self.rng.random()
        if way < 0.3 and (same := [n for n in self.values if n.type == t]):
            return self.rng.choice(same)
        if way < 0.5 and self.values and (made := self.adapt_value(self.recent_value(), t)):
            return made
        if way < 0.75:
            return self.random_constant(t)
        return self.add_input(t)

    def make_indices(self, t: TensorType, extent: int, wrap: bool, choice: float) -> Node:
        """Valid indices into `extent` elements."""
        low = -extent if wrap and t.dtype.kind == "int" else 0
        if choice < 0.3:
            high = min(extent, np.iinfo(t.dtype.numpy).max)
            return self.constant_from_array(
                t, self.array_rng.integers(max(low, np.iinfo(t.dtype.numpy).min), max(high, 1), t.static_shape())
            )
        if choice < 0.6 and self.values and 0 < extent < 128 and (made := self.adapt_value(self.recent_value(), t)):
            return ops.remainder(made, extent)
        return self.add_input(t)

    def add_input(self, t: TensorType) -> Node:
        node = input_node(f"x{len(self.inputs)}", t)
        self.inputs.append(node)
        self.values.append(node)
        return node

    def random_constant(self, t: TensorType) -> Node:
        plain = self.rng.random()
        if plain < 0.25:
            return self.constant_from_array(
                t,
                np.full(
                    t.static_shape(), self.rng.choice((0, 1, 2, 0.5)) if t.dtype.is_float else self.rng.choice((0, 1))
                ),
            )
        return self.constant_from_array(t, random_elements(t, self.array_rng, special=plain > 0.93))

    def constant_from_array(self, t: TensorType, array: np.ndarray[Any, Any]) -> Node:
        return constant_node(ConstantData(t.dtype, to_storage(np.asarray(array).astype(t.dtype.numpy), t.dtype)))

    def adapt_value(self, x: Node, t: TensorType) -> Node | None:
        """`x` as a value of type `t`, through a cast and views."""
        if numel(x.type) == 0 and numel(t) > 0:
            return None
        x = ops.as_dtype(x, t.dtype)
        if x.shape == t.shape:
            return x
        count = numel(t)
        if numel(x.type) == 1:
            return ops.expand(ops.reshape(x, shape=()), shape=t.shape) if t.rank else ops.reshape(x, shape=())
        if x.type.rank == t.rank:
            for d, n in enumerate(t.static_shape()):
                x = self.fit_dim(x, d, n)
            return x
        return ops.reshape(self.fit_dim(ops.reshape(x, shape=(numel(x.type),)), 0, count), shape=t.shape)

    def fit_dim(self, x: Node, dim: int, size: int) -> Node:
        """`x` with `size` elements along `dim`: a part of it, or with more around it."""
        extent = x.shape[dim]
        if size <= extent:
            start = self.rng.randint(0, extent - size) if size else 0
            return x if size == extent else ops.slice_(x, dim=dim, start=start, size=size)
        front = self.rng.randint(0, size - extent)
        before, after = ([n if d == dim else 0 for d in range(x.type.rank)] for n in (front, size - extent - front))
        return ops.pad(x, before=before, after=after, value=False if x.dtype.kind == "bool" else 0)

    # the whole

    def build_graph(self, name: str) -> Graph:
        """What has grown, with every value that nothing reads as an output, and some others; some are written back to inputs."""
        if not self.values:
            self.add_input(TensorType(DTYPES["f32"], (4,)))
        read = {o for n in self.values for o in n.operands}
        ends = [n for n in self.values if n not in read and n not in self.inputs]
        others = [n for n in self.values if n in read and self.rng.random() < 0.15]
        outputs = [*ends, *others] or [self.values[-1]]
        aliases: dict[int, int] = {}
        if self.rng.random() < 0.15:
            pairs = [
                (k, i)
                for k, n in enumerate(outputs)
                for i, x in enumerate(self.inputs)
                if n.result_type == x.result_type and n is not x
            ]
            if pairs:
                aliases = dict([self.rng.choice(pairs)])
        return Graph(tuple(self.inputs), tuple(outputs), name, aliases)
