"""Builder of random graphs, one call of an op after the other.

Operands of a call are existing values, cast and reshaped to the required type where necessary, or new inputs and constants.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compiler.ir import ops
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData, to_storage
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import OPERAND_KINDS, OPS, Node, Op, constant_node, input_node
from compiler.ir.graph.structure import CountingSort, Elementwise, Leaf, Opaque
from compiler.ir.text.type_parser import parse_type
from compiler.ir.types import DTYPES, TensorType
from compiler.testing.fuzz.inputs import index_operands, random_elements
from compiler.testing.fuzz.op_calls import CallMutator, OpCall, formal_operands, numel

STRUCTURE_WEIGHTS: Mapping[str, int] = {"Elementwise": 30, "Reduction": 18, "Composite": 22, "IndexMap": 22}
"""Relative frequency of ops by kind of structure, 4 for all others; chosen empirically."""


def ops_by_structure() -> dict[str, list[Op]]:
    """Return the ops with samples by the kind of their structure; no counting sorts, which GPUs refuse."""
    kinds: dict[str, list[Op]] = {}
    for op in OPS.values():
        if op.samples and not isinstance(op.structure, Leaf | CountingSort):
            kinds.setdefault(type(op.structure).__name__, []).append(op)
    return kinds


@dataclass
class GraphBuilder:
    """Builder of one random graph; `values` are all its values so far, `inputs` among them."""

    rng: random.Random
    array_rng: np.random.Generator
    values: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    ops_by_structure: dict[str, list[Op]] = field(default_factory=ops_by_structure)

    def __post_init__(self) -> None:
        self.mutator = CallMutator(self.rng)

    def add_random_call(self) -> None:
        """Add a random call of a random op, unless it is invalid."""
        kinds = list(self.ops_by_structure)
        kind = self.rng.choices(kinds, [STRUCTURE_WEIGHTS.get(k, 4) for k in kinds])[0]
        op = self.rng.choice(self.ops_by_structure[kind])
        fixed, value, call = self.draw_call(op)
        node = call.try_build()
        if node is None:
            return
        operands = [
            value if k == fixed and value is not None else self.make_operand(k, t, node)
            for k, t in enumerate(call.types)
        ]
        self.add(op(*operands, **call.attrs))

    def add(self, node: Node) -> None:
        """Append the results of `node` to the values; of a selection without indices, for which equal elements may be in any order."""
        results = ops.result_nodes(node)
        is_selection = isinstance(node.structure, Opaque) and node.structure.expansions is not None
        self.values += results[:1] if is_selection else results

    def loop_body_builder(self) -> GraphBuilder:
        """Return a builder of loop bodies, without gathers and scatters: indices there have no bounds to respect."""
        kinds = {k: v for k, v in self.ops_by_structure.items() if k not in ("Gather", "Scatter", "Opaque")}
        return GraphBuilder(self.rng, self.array_rng, ops_by_structure=kinds)

    # the call

    def draw_call(self, op: Op) -> tuple[int, Node | None, OpCall]:
        """Return a call of `op`, and the number and value of an operand taken from the graph, or -1 and None."""
        sample = self.rng.choice(op.samples)
        call = OpCall(op, tuple(parse_type(t) for t in sample.types), dict(sample.attrs))
        fixed, value = -1, None
        if call.types and self.values and self.rng.random() < 0.85:
            k = 0 if self.rng.random() < 0.75 else self.rng.randrange(len(call.types))
            chosen = self.recent_value()
            fitted = self.fit_call(call, k, chosen)
            if fitted is not None:
                fixed, value, call = k, chosen, fitted
        for _ in range(self.rng.choice((0, 2, 4, 8))):
            mutated = self.mutator.mutate(call, fixed)
            call = mutated if mutated.try_build() is not None else call
        return fixed, value, call

    def recent_value(self) -> Node:
        """Return a value of the graph, with a preference for late ones."""
        return self.values[-1 - min(int(self.rng.expovariate(0.5)), len(self.values) - 1)]

    def fit_call(self, call: OpCall, k: int, value: Node) -> OpCall | None:
        """Change `call` so that operand `k` has the type of `value`; None if no valid call was found."""
        specs = formal_operands(call.op, len(call.types))
        formal, old, new = specs[k], call.types[k], value.type
        if not OPERAND_KINDS[formal.kind](new.dtype):
            return None
        dtypes = [
            new.dtype
            if n == k
            or (t.dtype == old.dtype and not (f.independent_dtype or formal.independent_dtype or f.kind == "bool"))
            else t.dtype
            for n, (f, t) in enumerate(zip(specs, call.types, strict=True))
        ]
        if isinstance(call.op.structure, Elementwise):
            shapes = [new.shape if n == k else self.broadcastable_shape(new.shape) for n in range(len(dtypes))]
        else:
            sizes = dict(zip(reversed(old.shape), reversed(new.shape), strict=False))
            mapped = [tuple(sizes.get(d, d) for d in t.shape) for t in call.types]
            shapes = [new.shape if n == k else shape for n, shape in enumerate(mapped)]
        fitted = replace(call, types=tuple(map(TensorType, dtypes, shapes)))
        for _ in range(12):
            if fitted.try_build() is not None:
                return fitted
            fitted = self.mutator.mutate(fitted, k)
        return None

    def broadcastable_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return a random shape that broadcasts to `shape`."""
        if self.rng.random() < 0.5:
            return tuple(shape)
        start = self.rng.randrange(len(shape) + 1)
        return tuple(1 if self.rng.random() < 0.3 else d for d in shape[start:])

    # operands

    def make_operand(self, k: int, t: TensorType, node: Node) -> Node:
        """Return a value of type `t` for operand `k` of `node`: valid indices if it is indexed with, else any value."""
        extent, wrap = index_operands(node).get(k, (None, False))
        choice = self.rng.random()
        return self.make_value(t) if extent is None else self.make_indices(t, extent, wrap, choice)

    def make_value(self, t: TensorType) -> Node:
        """Return a value of type `t`: an existing one, perhaps cast and reshaped, a constant, or a new input."""
        choice = self.rng.random()
        if choice < 0.3 and (same := [n for n in self.values if n.type == t]):
            return self.rng.choice(same)
        if choice < 0.5 and self.values and (adapted := self.adapt_value(self.recent_value(), t)):
            return adapted
        if choice < 0.75:
            return self.random_constant(t)
        return self.add_input(t)

    def make_indices(self, t: TensorType, extent: int, wrap: bool, choice: float) -> Node:
        """Return valid indices into `extent` elements, negative ones too if they `wrap`; 0 <= `choice` < 1 is random."""
        low, info = -extent if wrap and t.dtype.kind == "int" else 0, np.iinfo(t.dtype.numpy)
        if choice < 0.3:
            high = min(extent, info.max)
            indices = self.array_rng.integers(max(low, info.min), max(high, 1), t.static_shape())
            return self.constant_from_array(t, indices)
        if choice < 0.6 and self.values and 0 < extent < 128 and (adapted := self.adapt_value(self.recent_value(), t)):
            return ops.remainder(adapted, extent)
        return self.add_input(t)

    def add_input(self, t: TensorType) -> Node:
        node = input_node(f"x{len(self.inputs)}", t)
        self.inputs.append(node)
        self.values.append(node)
        return node

    def random_constant(self, t: TensorType) -> Node:
        choice = self.rng.random()
        if choice < 0.25:
            value = self.rng.choice((0, 1, 2, 0.5) if t.dtype.is_float else (0, 1))
            return self.constant_from_array(t, np.full(t.static_shape(), value))
        return self.constant_from_array(t, random_elements(t, self.array_rng, special=choice > 0.93))

    def constant_from_array(self, t: TensorType, array: Array) -> Node:
        return constant_node(ConstantData(t.dtype, to_storage(np.asarray(array).astype(t.dtype.numpy), t.dtype)))

    def adapt_value(self, x: Node, t: TensorType) -> Node | None:
        """Convert `x` to type `t` by a cast and views; None if `x` is empty and `t` is not."""
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
        """Slice or pad `x` to `size` elements along `dim`."""
        extent = x.shape[dim]
        if size <= extent:
            start = self.rng.randint(0, extent - size) if size else 0
            return x if size == extent else ops.slice_(x, dim=dim, start=start, size=size)
        front = self.rng.randint(0, size - extent)
        before, after = ([n if d == dim else 0 for d in range(x.type.rank)] for n in (front, size - extent - front))
        return ops.pad(x, before=before, after=after, value=False if x.dtype.kind == "bool" else 0)

    # the graph

    def build_graph(self, name: str) -> Graph:
        """Return the graph: unused values and some others are outputs, and one may be written back to an input."""
        if not self.values:
            self.add_input(TensorType(DTYPES["f32"], (4,)))
        read = {o for n in self.values for o in n.operands}
        unused = [n for n in self.values if n not in read and n not in self.inputs]
        others = [n for n in self.values if n in read and self.rng.random() < 0.15]
        outputs = [*unused, *others] or [self.values[-1]]
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
