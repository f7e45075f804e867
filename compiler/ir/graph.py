"""Graph IR: SSA over typed tensors.

A `Node` is one value; its operands are nodes, so a graph is what its outputs reach.  Nodes never change: a pass builds new
ones with `Graph.rebuild`.  Effects do not exist here: the frontend makes mutation into extra outputs.

    graph @name(%x: f32[4, 8]) {
      %s = sigmoid %x
      %y = mul %s, %x
      return %y
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import Loc
from compiler.ir.index import Dim, substitute_symbols
from compiler.ir.op import Op, declare_leaf
from compiler.ir.scalar import Number, round_to
from compiler.ir.structure import Composite, Leaf, Recurrence, Structure
from compiler.ir.types import DType, TensorType, f32

if TYPE_CHECKING:
    import networkx

INPUT = declare_leaf("input", {"name": None})
CONSTANT = declare_leaf("constant", {"value": None})


@dataclass(frozen=True, eq=False)
class ConstantData:
    """The elements of a constant: a dense row-major array of `dtype` (bf16 as its 16 bits in uint16).

    `name` is the parameter's name in the user's module.  Compares by identity: weights are shared, never copied.
    """

    dtype: DType
    array: np.ndarray[Any, Any]
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def numpy_values(self) -> np.ndarray[Any, Any]:
        """The elements as `dtype.numpy` holds them (bf16 as float32)."""
        if self.dtype.name != "bf16":
            return self.array
        return (self.array.astype(np.uint32) << np.uint32(16)).view(np.float32)

    @cached_property
    def digest(self) -> str:
        """A hash of the contents."""
        import hashlib

        return hashlib.sha256(f"{self.dtype}{self.array.shape}".encode() + self.array.tobytes()).hexdigest()[:32]


class LazyConstant(ConstantData):
    """Data whose elements are computed each time that they are asked for, so that no memory holds them in between.

    `part(start, stop)` computes those from `start` up to `stop` along the last dimension.
    """

    compute_slice: Callable[[int, int], np.ndarray[Any, Any]]

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], compute_slice: Callable[[int, int], np.ndarray[Any, Any]]
    ) -> None:
        for name, value in (("dtype", dtype), ("name", ""), ("_shape", shape), ("compute_slice", compute_slice)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape  # type: ignore[attr-defined, no-any-return]  # set above: instances are frozen

    @property
    def array(self) -> np.ndarray[Any, Any]:
        return self.compute_slice(0, self.shape[-1])


def to_storage(values: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`numbers` as a `Data` of `dtype` holds them; the inverse of `Data.numbers`."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        rounded: np.ndarray[Any, Any] = round_to(values, dtype)
    if dtype.name == "bf16":
        rounded = (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.asarray(rounded)  # one element comes out of arithmetic as a scalar


@dataclass(frozen=True, eq=False)
class Node:
    """One value of the graph.  A node with several results has a tuple of types and is read through `item` nodes."""

    op: Op
    operands: tuple[Node, ...]
    attrs: Mapping[str, Any]
    result_type: TensorType | tuple[TensorType, ...]
    name: str = ""
    loc: Loc | None = None

    @property
    def type(self) -> TensorType:
        """The type of a single-result node."""
        assert isinstance(self.result_type, TensorType), f"{self.op.name} has several results; read them through item"
        return self.result_type

    @property
    def structure(self) -> Structure:
        return self.op.structure

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def with_operands(self, operands: tuple[Node, ...]) -> Node:
        """The same op on other operands, the type derived again; `self` where nothing changed."""
        if all(a is b for a, b in zip(self.operands, operands, strict=True)):
            return self
        built = self.op(*operands, loc=self.loc, **self.attrs)
        return replace(built, name=self.name)

    def with_name(self, name: str) -> Node:
        return replace(self, name=name)

    def with_loc(self, loc: Loc | None) -> Node:
        """The same node, said to come from `loc`."""
        return replace(self, loc=loc)

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.result_type} = {self.op.name}({', '.join('%' + (o.name or '?') for o in self.operands)})"


def input_node(name: str, type: TensorType, loc: Loc | None = None) -> Node:
    """A graph input."""
    return Node(INPUT, (), {"name": name}, type, name=name, loc=loc)


def constant_node(
    data: ConstantData | np.ndarray[Any, Any], dtype: DType | None = None, name: str = "", loc: Loc | None = None
) -> Node:
    """A constant tensor."""
    if not isinstance(data, ConstantData):
        from compiler.ir.types import DTYPES

        array = np.asarray(data, order="C")
        known = dtype or next(d for d in DTYPES.values() if d.numpy == array.dtype)
        data = ConstantData(known, array, name)
    return Node(CONSTANT, (), {"value": data}, TensorType(data.dtype, data.shape), name=name or data.name, loc=loc)


def scalar_constant(value: Number, dtype: DType | None = None) -> Node:
    """A constant of rank 0."""
    d = dtype or f32
    return constant_node(ConstantData(d, to_storage(np.array(value), d)))


def scalar_value(node: Node) -> Number | None:
    """The Python number a constant holds in every element, if it holds only one element; else None."""
    if not isinstance(node.structure, Leaf) or "value" not in node.attrs:
        return None
    data: ConstantData = node.attrs["value"]
    if prod(data.shape) != 1:
        return None
    return data.numpy_values.item()  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs, outputs and everything between.

    `aliases` maps an output's position to the input it is written back to when the call ends (input mutation).
    """

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    name: str = "graph"
    output_aliases: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node an output reaches, operands before users; inputs come first, used or not."""
        order: list[Node] = []
        seen: set[Node] = set()

        def visit(root: Node) -> None:
            stack: list[tuple[Node, bool]] = [(root, False)]
            while stack:
                node, done = stack.pop()
                if done:
                    order.append(node)
                elif node not in seen:
                    seen.add(node)
                    stack.append((node, True))
                    stack.extend((o, False) for o in reversed(node.operands) if o not in seen)

        for root in (*self.inputs, *self.outputs):
            visit(root)
        return tuple(order)

    @cached_property
    def users(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that read each node, once per operand position."""
        found: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for n in self.nodes:
            for o in n.operands:
                found[o].append(n)
        return {n: tuple(u) for n, u in found.items()}

    @property
    def constants(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.op is CONSTANT)

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbolic dimensions of the inputs."""
        return frozenset().union(*(n.type.symbols for n in self.inputs))

    def map_nodes(self, rule: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
        """A graph where each node is `rule(node, its operands already rebuilt)`; inputs may be replaced too."""
        new: dict[Node, Node] = {}
        for n in self.nodes:
            new[n] = rule(n, tuple(new[o] for o in n.operands))
        return replace(self, inputs=tuple(new[n] for n in self.inputs), outputs=tuple(new[n] for n in self.outputs))

    def map_bodies(self, transform: Callable[[Graph], Graph]) -> Graph:
        """The graph with the body of every recurrence in it replaced by `rule(body)`; `self` where none changes."""
        bodies = {n: n.attrs["body"] for n in self.nodes if isinstance(n.structure, Recurrence)}
        changed = {n: new for n, old in bodies.items() if (new := transform(old)) is not old}
        if not changed:
            return self

        def one(n: Node, operands: tuple[Node, ...]) -> Node:
            node = replace(n, attrs={**n.attrs, "body": changed[n]}) if n in changed else n
            return replace(node, operands=operands)

        return self.map_nodes(one)

    def replace_nodes(self, replacements: Mapping[Node, Node]) -> Graph:
        """A graph where each key is replaced by its value (built over the old graph's nodes)."""
        if not replacements:
            return self
        memo: dict[Node, Node] = {}

        def resolve(root: Node) -> Node:
            stack = [root]
            while stack:
                n = stack[-1]
                target = replacements.get(n)
                pending = [target] if target is not None else list(n.operands)
                waiting = [p for p in pending if p not in memo and p is not n]
                if waiting and n not in memo:
                    stack.extend(waiting)
                    continue
                if n not in memo:
                    memo[n] = (
                        memo[target] if target is not None else n.with_operands(tuple(memo[o] for o in n.operands))
                    )
                stack.pop()
            return memo[root]

        return replace(self, outputs=tuple(resolve(n) for n in self.outputs))

    def specialize(self, sizes: Mapping[str, Dim]) -> Graph:
        """The graph with its symbolic dimensions replaced by `sizes`: numbers, or sizes that stay open."""

        def fix(value: Any) -> Any:
            return value.specialize(sizes) if isinstance(value, Graph) else substitute_symbols(value, sizes)

        def rule(n: Node, operands: tuple[Node, ...]) -> Node:
            if isinstance(n.structure, Leaf):
                return replace(n, result_type=n.type.specialize(sizes))
            return replace(n.op(*operands, loc=n.loc, **{k: fix(v) for k, v in n.attrs.items()}), name=n.name)

        return self.map_nodes(rule)

    def to_networkx(self) -> networkx.DiGraph:
        """The graph as a networkx view: nodes are `Node`s with label, op and type; edges run from operand to user."""
        import networkx

        view: networkx.DiGraph = networkx.DiGraph(name=self.name)
        for n in self.nodes:
            view.add_node(n, label=f"{n.op.name}\n{n.result_type}", op=n.op.name, type=str(n.result_type))
        view.add_edges_from((o, n) for n in self.nodes for o in n.operands)
        return view

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __str__(self) -> str:
        from compiler.ir.printer import print_graph

        return print_graph(self)


def expand_composite(node: Node) -> Graph:
    """A composite's meaning as a graph with one input per operand; constant operands are seen through."""
    assert isinstance(node.structure, Composite), f"{node.op.name} is not a composite"
    inputs = tuple(
        Node(INPUT, (), {"name": f"x{k}"}, o.result_type, f"x{k}", o.loc) for k, o in enumerate(node.operands)
    )
    operands = tuple(o if o.op is CONSTANT else x for o, x in zip(node.operands, inputs, strict=True))
    root = node.structure.expand(replace(node, operands=operands), *operands)
    return Graph(inputs, (root,), node.op.name)


def unique_names(nodes: Iterable[Node]) -> dict[Node, str]:
    """A distinct name for each node: its own where free, else a numbered one."""
    taken: set[str] = set()
    names: dict[Node, str] = {}
    for n in nodes:
        base = n.name or n.op.name
        name, count = (base, 0) if n.name else (f"{base}_0", 0)
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        names[n] = name
    return names
