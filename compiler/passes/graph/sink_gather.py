"""Gathers follow elementwise ops where fewer elements are computed before them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

from compiler.analysis.structural_key import node_key
from compiler.ir import ops
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Elementwise, Gather, Lookup, index_vars, position_variables
from compiler.ir.tile.kernel import dim_hint
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class SinkGather(GraphPass):
    """Compute elementwise ops before a gather along one dimension, where that leaves fewer elements to compute.

    %a = index %x, %rows, %low {dims=[0, 1]}  %b = index %x, %rows, %high {dims=[0, 1]}  %y = add %a, %b
      ->
    %a = index %x, %low {dims=[1]}  %b = index %x, %high {dims=[1]}  %sum = add %a, %b  %y = index %sum, %rows {dims=[0]}

    Resizing by interpolation thus becomes one step for each dimension, as each row between the same columns is read by
    several rows of the result.  Applies where at most `max_share` of the elements remain.
    """

    name = "sink-gather"
    exact = True
    max_share: float = 0.75

    def run(self, ir: Graph, context: Context) -> Graph:
        search = SinkableGathers(ir)
        new: dict[Node, Node] = {}
        for g in sorted(search.groups(), key=lambda g: g.share):
            if g.share > self.max_share or any(n in new for n in g.roots):
                continue
            value = f"%{g.roots[0].name}" if g.roots[0].name else "a value"
            message = f"{value} is gathered along dimension {g.dim} when it is computed"
            if context.may_apply(self, message, g.roots[0]):
                new |= {n: search.vectors[n][g.dim].gather(g.source, g.dim).with_name(n.name) for n in g.roots}
        return ir.replace_nodes(new)


@dataclass(frozen=True)
class IndexVector:
    """Indices along one dimension of a gather."""

    indices: Node
    wrap_negative: bool
    in_bounds: bool

    def gather(self, x: Node, dim: int) -> Node:
        """Gather `x` along dimension `dim`."""
        indices = (
            ops.reshape(self.indices, shape=(self.indices.type.numel,)) if self.indices.type.rank > 1 else self.indices
        )
        if self.wrap_negative:
            return ops.index(x, indices, dims=(dim,), in_bounds=self.in_bounds)
        return ops.take(x, indices, dim=dim, in_bounds=self.in_bounds)


@dataclass(frozen=True)
class SunkGather:
    """The values `roots`, which are gathers of `source` along dimension `dim`; `share` of the elements remain to compute."""

    source: Node
    dim: int
    roots: tuple[Node, ...]
    share: float


@dataclass
class SinkableGathers:
    """Values of a graph that could be gathered after they are computed.

    `vectors` maps them to the indices by dimension, and `sources` a value and a dimension to what it would be without that
    gather; equal sources are one node.
    """

    graph: Graph
    vectors: dict[Node, dict[int, IndexVector]] = field(default_factory=dict)
    sources: dict[tuple[Node, int], Node] = field(default_factory=dict)
    _known: dict[tuple[object, tuple[Node, ...]], Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for n in self.graph.nodes:
            if isinstance(n.structure, Gather):
                self.vectors[n] = gathered_dims(n)
            elif isinstance(n.structure, Elementwise):
                self.vectors[n] = dict(self._common_vectors(n))
            for d in self.vectors.get(n, ()):
                self.sources[n, d] = self._source(n, d)

    def groups(self) -> Iterator[SunkGather]:
        """Yield gathers that can be sunk, with the values that have one source."""
        roots: dict[tuple[Node, int], list[Node]] = {}
        for n, by_dim in self.vectors.items():
            for d in by_dim if isinstance(n.structure, Elementwise) else ():
                if n in self.graph.outputs or any(not self._passes_on(u, n, d) for u in self.graph.users[n]):
                    roots.setdefault((self.sources[n, d], d), []).append(n)
        for (source, d), values in roots.items():
            before = {n for n, _ in reachable([(v, d) for v in values], gathered_operands)}
            after = reachable([source], lambda n: () if n in self.graph.users else n.operands)
            computed = sum(element_count(n) for n in after if n not in self.graph.users)
            share = (computed + sum(map(element_count, values))) / max(1, sum(map(element_count, before)))
            yield SunkGather(source, d, tuple(values), share)

    def _common_vectors(self, n: Node) -> Iterator[tuple[int, IndexVector]]:
        """Yield the dimensions along which all operands that vary are gathered by the same indices."""
        for d, extent in enumerate(n.shape):
            varying = [(o, k) for o, k in aligned_operands(n, d) if k is not None]
            found = {self.vectors.get(o, {}).get(k) for o, k in varying}
            vector = found.pop() if len(found) == 1 else None
            if vector is not None and extent != 1:
                yield d, vector

    def _passes_on(self, user: Node, n: Node, d: int) -> bool:
        """Return True if `user` is gathered by the indices of dimension `d` of its operand `n` as well."""
        dim = d + user.type.rank - n.type.rank if isinstance(user.structure, Elementwise) else -1
        return self.vectors.get(user, {}).get(dim) == self.vectors[n][d]

    def _source(self, n: Node, d: int) -> Node:
        """Return the value `n` without the gather along dimension `d`, built on the sources of its operands."""
        if isinstance(n.structure, Gather):
            others = sorted((k, v) for k, v in self.vectors[n].items() if k != d)
            return reduce(lambda x, other: self._unique(other[1].gather(x, other[0])), others, n.operands[0])
        operands = [o if k is None else self.sources[o, k] for o, k in aligned_operands(n, d)]
        return self._unique(n.op(*operands, loc=n.loc, **n.attrs))

    def _unique(self, n: Node) -> Node:
        return self._known.setdefault((node_key(n), n.operands), n)


def gathered_dims(n: Node) -> dict[int, IndexVector]:
    """Return the indices along each dimension of a gather that changes no other; {} if it is of another form."""
    assert isinstance(n.structure, Gather)
    index, vectors = index_vars("i", n.type.rank), dict[int, IndexVector]()
    position = n.structure.position(n, index)
    if len(position) != len(index):
        return {}
    for d, (p, i) in enumerate(zip(position, index, strict=True)):
        if isinstance(p, Lookup) and position_variables(p.position) == {str(i)}:
            vectors[d] = IndexVector(n.operands[p.operand], p.wrap_negative, p.in_bounds)
        elif p != i:
            return {}
    return vectors


def aligned_operands(n: Node, d: int) -> Iterator[tuple[Node, int | None]]:
    """Yield the operands of an elementwise node, with the dimension that varies along `d` of the result, if any."""
    for o in n.operands:
        k = d - (n.type.rank - o.type.rank)
        yield o, k if k >= 0 and o.shape[k] != 1 else None


def gathered_operands(value: tuple[Node, int]) -> list[tuple[Node, int]]:
    """Return the operands of a value that is gathered along a dimension, with theirs; none for the gather itself."""
    n, d = value
    return [(o, k) for o, k in aligned_operands(n, d) if k is not None] if isinstance(n.structure, Elementwise) else []


def element_count(n: Node) -> int:
    """Return the number of elements under the size hints."""
    return dim_hint(n.type.numel)
