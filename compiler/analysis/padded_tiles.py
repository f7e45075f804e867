"""Images computed further than they go, in whole tiles: those who read them leave the rest out, and no kernel has an end.

%y = slice %whole {size=h}     %z = relu %y     ->     %s = relu %whole      %z = slice %s {size=h}
%y = slice %whole {size=h}     %p = pad %y      ->     %s = where %inside, %whole, 0      %p = pad %s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.analysis.convolution_match import match_zero_padding
from compiler.analysis.reduction_domains import index_vars
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_constant
from compiler.ir.graph.structure import Elementwise, IndexMap, Leaf
from compiler.ir.symbolic.bounds import is_provably_at_most
from compiler.ir.symbolic.index_expr import Dim, variables

Shape: TypeAlias = tuple[Dim, ...]


@dataclass
class PaddedTiles:
    """The new nodes that are first parts of images computed further, and how far: for one rebuilding of `graph`.

    `reads` says how far some images of the graph are read, zeros around others among them.
    """

    graph: Graph
    read_shapes: Mapping[Node, Shape]
    computed_shapes: dict[Node, Shape] = field(default_factory=dict)
    pad_replacements: dict[Node, Node] = field(default_factory=dict)

    def crop(self, whole: Node, shape: Sequence[Dim]) -> Node:
        """The first elements of `whole`, up to `shape`."""
        found = slice_region(whole, (0,) * len(shape), shape)
        if found is not whole:
            self.computed_shapes[found] = whole.shape
        return found

    def sink_crop(self, n: Node) -> Node:
        """`n`; if it is elementwise and one of its operands overhangs, computed as far as that is."""
        if not isinstance(n.structure, Elementwise):
            return n
        shape = next(
            (self.computed_shapes[o] for o in n.operands if o in self.computed_shapes and o.shape == n.shape), None
        )
        if shape is None:
            return n
        whole = n.with_operands(tuple(extend_to(o, operand_shape(o.shape, shape)) for o in n.operands))
        return self.crop(whole, n.shape)

    def as_slice_of_padded(self, n: Node, new: Node) -> Node:
        """What node `n` of the graph, now `new`, is read as: where zeros are put around what overhangs, the midst of them."""
        if isinstance(n.structure, Leaf):
            return new
        for p in self.graph.users.get(n, ()):
            margins = match_zero_padding(p)
            if (
                margins is None
                or p in self.pad_replacements
                or (new not in self.computed_shapes and p not in self.read_shapes)
            ):
                continue
            self.pad_replacements[p] = whole = self.pad_extended(p, new)
            middle = slice_region(whole, [before for before, _ in margins], new.shape)
            if new in self.computed_shapes:
                self.computed_shapes[middle] = self.computed_shapes[new]
            new = middle
        return new

    def pad_extended(self, p: Node, x: Node) -> Node:
        """The zeros around `x` that `p` asks for, and more behind it, as far as it is read and `x` is computed."""
        margins, whole = match_zero_padding(p) or (), self.computed_shapes.get(x, x.shape)
        before = tuple(b for b, _ in margins)
        shape = self.read_shapes.get(p) or tuple(b + own + a for (b, a), own in zip(margins, whole, strict=True))
        if not all(is_provably_at_most(b + own, size) for b, own, size in zip(before, whole, shape, strict=True)):
            whole = x.shape  # smaller tiles read less than larger ones have computed
        inner = x if whole == x.shape else zero_beyond(extend_to(x, whole), x.shape)
        after = tuple(size - b - own for size, b, own in zip(shape, before, whole, strict=True))
        return ops.pad(inner, before=before, after=after).with_loc(p.loc)


def operand_shape(shape: Shape, whole: Shape) -> Shape:
    """`shape` as broadcasting to `whole` asks for it."""
    return tuple(1 if own == 1 else size for own, size in zip(shape, whole[len(whole) - len(shape) :], strict=True))


def slice_region(x: Node, start: Sequence[Dim], shape: Sequence[Dim]) -> Node:
    """The elements of `x` from `start` on."""
    for d, (first, size) in enumerate(zip(start, shape, strict=True)):
        if x.shape[d] != size:
            x = ops.slice_(x, dim=d, start=first, size=size).with_loc(x.loc)
    return x


def extend_to(x: Node, shape: Shape) -> Node:
    """`x` with more elements behind it, up to `shape`: those that it is cut from where there are so many, zeros otherwise."""
    start: Shape = (0,) * len(shape)
    whole = x
    while x.shape != shape and (offset := slice_start(whole)) is not None:
        start = tuple(a + b for a, b in zip(start, offset, strict=True))
        (whole,) = whole.operands
        if all(is_provably_at_most(a + size, room) for a, size, room in zip(start, shape, whole.shape, strict=True)):
            return slice_region(whole, start, shape)
    return zero_pad_to(x, shape)


def zero_pad_to(x: Node, shape: Shape) -> Node:
    """`x` with zeros behind it, up to `shape`."""
    if x.shape == shape:
        return x
    after = tuple(size - own for size, own in zip(shape, x.shape, strict=True))
    return ops.pad(x, before=(0,) * len(shape), after=after).with_loc(x.loc)


def slice_start(n: Node) -> Shape | None:
    """How far into its operand a node begins that is a part of it; None for any other node."""
    s = n.structure
    if not isinstance(s, IndexMap) or s.inverse is None or n.operands[0].type.rank != n.type.rank:
        return None
    index = index_vars("i", n.type.rank)
    offset = tuple(d - i for d, i in zip(s.reads(n, index)[0].position, index, strict=True))
    return None if any(map(variables, offset)) else offset


def zero_beyond(x: Node, ends: Shape) -> Node:
    """`x` with zeros from `ends` on along each dimension."""
    sizes = tuple(1 if size == end else size for size, end in zip(x.shape, ends, strict=True))
    inside = ops.before(shape=sizes, ends=tuple(1 if size == 1 else end for size, end in zip(sizes, ends, strict=True)))
    return ops.where(inside, x, scalar_constant(0, x.dtype)).with_loc(x.loc)
