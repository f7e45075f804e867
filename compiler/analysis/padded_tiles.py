"""Images computed past their edges in whole tiles: consumers crop the excess, so no kernel has a partial tile.

%y = slice %full {size=h}     %z = relu %y     ->     %s = relu %full            %z = slice %s {size=h}
%y = slice %full {size=h}     %p = pad %y      ->     %s = where %inside, %full, 0      %p = pad %s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from compiler.analysis.convolution_match import match_zero_padding
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_constant
from compiler.ir.graph.structure import Elementwise, IndexMap, Leaf, index_vars
from compiler.ir.symbolic.bounds import is_provably_at_most
from compiler.ir.symbolic.index_expr import Dim, variables

Shape: TypeAlias = tuple[Dim, ...]


@dataclass
class PaddedTiles:
    """Nodes that are crops of larger computed images, during one rewrite of `graph`.

    `read_shapes` gives the extent to which images of the graph are read, including zero-padded ones.
    `computed_shapes` gives the full shape behind each crop, `pad_replacements` the new node of each replaced padding.
    """

    graph: Graph
    read_shapes: Mapping[Node, Shape]
    computed_shapes: dict[Node, Shape] = field(default_factory=dict)
    pad_replacements: dict[Node, Node] = field(default_factory=dict)

    def crop(self, full: Node, shape: Sequence[Dim]) -> Node:
        """Return the leading region of `full` of the given shape, and record the shape of `full`."""
        region = slice_region(full, (0,) * len(shape), shape)
        if region is not full:
            self.computed_shapes[region] = full.shape
        return region

    def sink_crop(self, n: Node) -> Node:
        """Return `n`; if it is elementwise and an operand is a crop, the crop of `n` computed on the full shape."""
        if not isinstance(n.structure, Elementwise):
            return n
        crops = (o for o in n.operands if o in self.computed_shapes and o.shape == n.shape)
        shape = next((self.computed_shapes[o] for o in crops), None)
        if shape is None:
            return n
        full = n.with_operands(tuple(extend_to(o, operand_shape(o.shape, shape)) for o in n.operands))
        return self.crop(full, n.shape)

    def as_slice_of_padded(self, n: Node, new: Node) -> Node:
        """Return the value that replaces node `n` of the graph, given its rewritten form `new`.

        If a user pads a crop with zeros, the value is a slice of the padded image, which is computed once.
        """
        if isinstance(n.structure, Leaf):
            return new
        for p in self.graph.users.get(n, ()):
            margins = match_zero_padding(p)
            if margins is None or p in self.pad_replacements:
                continue
            if new not in self.computed_shapes and p not in self.read_shapes:
                continue
            self.pad_replacements[p] = padded = self.pad_extended(p, new)
            interior = slice_region(padded, [before for before, _ in margins], new.shape)
            if new in self.computed_shapes:
                self.computed_shapes[interior] = self.computed_shapes[new]
            new = interior
        return new

    def pad_extended(self, p: Node, x: Node) -> Node:
        """Return `x` with the zeros that `p` puts around it, extended to the shapes that are read and computed."""
        margins, full = match_zero_padding(p) or (), self.computed_shapes.get(x, x.shape)
        before = tuple(b for b, _ in margins)
        shape = self.read_shapes.get(p) or tuple(b + own + a for (b, a), own in zip(margins, full, strict=True))
        if not all(is_provably_at_most(b + own, size) for b, own, size in zip(before, full, shape, strict=True)):
            full = x.shape  # smaller tiles read less than larger ones have computed
        inner = x if full == x.shape else zero_beyond(extend_to(x, full), x.shape)
        after = tuple(size - b - own for size, b, own in zip(shape, before, full, strict=True))
        return ops.pad(inner, before=before, after=after).with_loc(p.loc)


def operand_shape(shape: Shape, full: Shape) -> Shape:
    """Return the shape that an operand of shape `shape` needs to broadcast to `full`."""
    return tuple(1 if own == 1 else size for own, size in zip(shape, full[len(full) - len(shape) :], strict=True))


def slice_region(x: Node, start: Sequence[Dim], shape: Sequence[Dim]) -> Node:
    """Return the elements of `x` from `start` on, `shape` of them."""
    for d, (first, size) in enumerate(zip(start, shape, strict=True)):
        if x.shape[d] != size:
            x = ops.slice_(x, dim=d, start=first, size=size).with_loc(x.loc)
    return x


def extend_to(x: Node, shape: Shape) -> Node:
    """Return `x` extended to `shape`: by a larger slice of its source if that is large enough, else by zeros."""
    start: Shape = (0,) * len(shape)
    source = x
    while x.shape != shape and (offset := slice_start(source)) is not None:
        start = tuple(a + b for a, b in zip(start, offset, strict=True))
        (source,) = source.operands
        if all(is_provably_at_most(a + size, n) for a, size, n in zip(start, shape, source.shape, strict=True)):
            return slice_region(source, start, shape)
    return zero_pad_to(x, shape)


def zero_pad_to(x: Node, shape: Shape) -> Node:
    """Return `x` padded with trailing zeros to `shape`."""
    if x.shape == shape:
        return x
    after = tuple(size - own for size, own in zip(shape, x.shape, strict=True))
    return ops.pad(x, before=(0,) * len(shape), after=after).with_loc(x.loc)


def slice_start(n: Node) -> Shape | None:
    """Return the offset of slice `n` in its operand, or None if `n` is not a contiguous slice."""
    s = n.structure
    if not isinstance(s, IndexMap) or s.inverse is None or n.operands[0].type.rank != n.type.rank:
        return None
    index = index_vars("i", n.type.rank)
    offset = tuple(d - i for d, i in zip(s.reads(n, index)[0].position, index, strict=True))
    return None if any(map(variables, offset)) else offset


def zero_beyond(x: Node, ends: Shape) -> Node:
    """Return `x` with its elements at or beyond `ends` along any dimension replaced by zeros."""
    sizes = tuple(1 if size == end else size for size, end in zip(x.shape, ends, strict=True))
    inside = ops.bounds_mask(
        shape=sizes, ends=tuple(1 if size == 1 else end for size, end in zip(sizes, ends, strict=True))
    )
    return ops.where(inside, x, scalar_constant(0, x.dtype)).with_loc(x.loc)
