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

from compiler.fuzz.calls import Call, Variation, formals, numel
from compiler.fuzz.inputs import lookups, random_elements
from compiler.ir import ops
from compiler.ir.graph import Data, Graph, Node, constant, input_node, stored
from compiler.ir.op import KINDS, OPS, Op
from compiler.ir.structure import Elementwise, Leaf
from compiler.ir.type_parser import parse_type
from compiler.ir.types import DTYPES, TensorType

KIND_WEIGHTS: Mapping[str, int] = {"Elementwise": 30, "Reduction": 18, "Composite": 22, "IndexMap": 22}
"""How often a structure is drawn; all others have weight 4."""


def drawable() -> dict[str, list[Op]]:
    """The ops that can be drawn, by the kind of their structure."""
    kinds: dict[str, list[Op]] = {}
    for op in OPS.values():
        if op.samples and not isinstance(op.structure, Leaf):
            kinds.setdefault(type(op.structure).__name__, []).append(op)
    return kinds


@dataclass
class Growth:
    """A graph while it grows."""

    rng: random.Random
    numbers: np.random.Generator
    pool: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    kinds: dict[str, list[Op]] = field(default_factory=drawable)

    def __post_init__(self) -> None:
        self.variation = Variation(self.rng)

    def step(self) -> None:
        """Add the call of one more op."""
        kind = self.rng.choices(list(self.kinds), [KIND_WEIGHTS.get(k, 4) for k in self.kinds])[0]
        op = self.rng.choice(self.kinds[kind])
        at, value, call = self.draw(op)
        node = call.placeholder()
        if node is None:
            return
        operands = [
            value if k == at and value is not None else self.operand(k, t, node) for k, t in enumerate(call.types)
        ]
        self.add(op(*operands, **call.attrs))

    def add(self, node: Node) -> None:
        """Enter the results of `node`."""
        self.pool += ops.results(node)

    def inside(self) -> Growth:
        """The body of a loop, in which no number is a position: what stays the same there would need its bounds."""
        kinds = {k: v for k, v in self.kinds.items() if k not in ("Gather", "Scatter", "Opaque", "Item")}
        return Growth(self.rng, self.numbers, kinds=kinds)

    # the call

    def draw(self, op: Op) -> tuple[int, Node | None, Call]:
        """A call of `op`, and perhaps a value of the graph that fits one of its operands."""
        sample = self.rng.choice(op.samples)
        call = Call(op, tuple(parse_type(t) for t in sample.types), dict(sample.attrs))
        fixed, value = -1, None
        if call.types and self.pool and self.rng.random() < 0.85:
            k = 0 if self.rng.random() < 0.75 else self.rng.randrange(len(call.types))
            chosen = self.recent()
            anchored = self.anchored(call, k, chosen)
            if anchored is not None:
                fixed, value, call = k, chosen, anchored
        for _ in range(self.rng.choice((0, 2, 4, 8))):
            changed = self.variation.changed(call, fixed)
            call = changed if changed.placeholder() is not None else call
        return fixed, value, call

    def recent(self) -> Node:
        """A value of the graph, mostly a late one."""
        return self.pool[-1 - min(int(self.rng.expovariate(0.5)), len(self.pool) - 1)]

    def anchored(self, call: Call, k: int, value: Node) -> Call | None:
        """`call` with operand number `k` of the type of `value`."""
        formal, old, new = formals(call.op, len(call.types))[k], call.types[k], value.type
        if not KINDS[formal.kind](new.dtype):
            return None
        dtypes = [
            new.dtype
            if n == k or (t.dtype == old.dtype and not (f.free or formal.free or f.kind == "bool"))
            else t.dtype
            for n, (f, t) in enumerate(zip(formals(call.op, len(call.types)), call.types, strict=True))
        ]
        if isinstance(call.op.structure, Elementwise):
            shapes = [new.shape if n == k else self.stretchable(new.shape) for n in range(len(dtypes))]
        else:
            sizes = dict(zip(reversed(old.shape), reversed(new.shape), strict=False))
            shapes = [
                new.shape if n == k else tuple(sizes.get(d, d) for d in t.shape) for n, t in enumerate(call.types)
            ]
        made = replace(call, types=tuple(map(TensorType, dtypes, shapes)))
        for _ in range(12):
            if made.placeholder() is not None:
                return made
            made = self.variation.changed(made, k)
        return None

    def stretchable(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """A shape that broadcasts to `shape`."""
        if self.rng.random() < 0.5:
            return tuple(shape)
        cut = self.rng.randrange(len(shape) + 1)
        return tuple(1 if self.rng.random() < 0.3 else d for d in shape[cut:])

    # its operands

    def operand(self, k: int, t: TensorType, node: Node) -> Node:
        """A value of type `t` for operand number `k` of `node`."""
        extent, wrap = lookups(node).get(k, (None, False))
        way = self.rng.random()
        if extent is not None:
            return self.indices(t, extent, wrap, way)
        return self.value(t)

    def value(self, t: TensorType) -> Node:
        """A value of type `t`: one that is there, perhaps cast and cut to fit, a constant, or a new input."""
        way = self.rng.random()
        if way < 0.3 and (same := [n for n in self.pool if n.type == t]):
            return self.rng.choice(same)
        if way < 0.5 and self.pool and (made := self.adapted(self.recent(), t)):
            return made
        if way < 0.75:
            return self.constant(t)
        return self.input(t)

    def indices(self, t: TensorType, extent: int, wrap: bool, way: float) -> Node:
        """Valid indices into `extent` elements."""
        low = -extent if wrap and t.dtype.kind == "int" else 0
        if way < 0.3:
            high = min(extent, np.iinfo(t.dtype.numpy).max)
            return self.made_constant(
                t, self.numbers.integers(max(low, np.iinfo(t.dtype.numpy).min), max(high, 1), t.static_shape())
            )
        if way < 0.6 and self.pool and 0 < extent < 128 and (made := self.adapted(self.recent(), t)):
            return ops.remainder(made, extent)
        return self.input(t)

    def input(self, t: TensorType) -> Node:
        node = input_node(f"x{len(self.inputs)}", t)
        self.inputs.append(node)
        self.pool.append(node)
        return node

    def constant(self, t: TensorType) -> Node:
        plain = self.rng.random()
        if plain < 0.25:
            return self.made_constant(
                t,
                np.full(
                    t.static_shape(), self.rng.choice((0, 1, 2, 0.5)) if t.dtype.is_float else self.rng.choice((0, 1))
                ),
            )
        return self.made_constant(t, random_elements(t, self.numbers, special=plain > 0.93))

    def made_constant(self, t: TensorType, array: np.ndarray[Any, Any]) -> Node:
        return constant(Data(t.dtype, stored(np.asarray(array).astype(t.dtype.numpy), t.dtype)))

    def adapted(self, x: Node, t: TensorType) -> Node | None:
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
                x = self.fitted(x, d, n)
            return x
        return ops.reshape(self.fitted(ops.reshape(x, shape=(numel(x.type),)), 0, count), shape=t.shape)

    def fitted(self, x: Node, dim: int, size: int) -> Node:
        """`x` with `size` elements along `dim`: a part of it, or with more around it."""
        extent = x.shape[dim]
        if size <= extent:
            start = self.rng.randint(0, extent - size) if size else 0
            return x if size == extent else ops.slice_(x, dim=dim, start=start, size=size)
        front = self.rng.randint(0, size - extent)
        before, after = ([n if d == dim else 0 for d in range(x.type.rank)] for n in (front, size - extent - front))
        return ops.pad(x, before=before, after=after, value=False if x.dtype.kind == "bool" else 0)

    # the whole

    def graph(self, name: str) -> Graph:
        """What has grown, with every value that nothing reads as an output, and some others; some are written back to inputs."""
        if not self.pool:
            self.input(TensorType(DTYPES["f32"], (4,)))
        read = {o for n in self.pool for o in n.operands}
        ends = [n for n in self.pool if n not in read and n not in self.inputs]
        others = [n for n in self.pool if n in read and self.rng.random() < 0.15]
        outputs = [*ends, *others] or [self.pool[-1]]
        aliases: dict[int, int] = {}
        if self.rng.random() < 0.15:
            pairs = [
                (k, i)
                for k, n in enumerate(outputs)
                for i, x in enumerate(self.inputs)
                if n.result == x.result and n is not x
            ]
            if pairs:
                aliases = dict([self.rng.choice(pairs)])
        return Graph(tuple(self.inputs), tuple(outputs), name, aliases)
