"""In-place concatenation and padding: producers store into the buffer of the concat or pad, so no copy is needed.

    %y = conv %x     %p = pad %y     %z = conv %p          the kernel of %y stores into the interior of %p
    %a = conv %x     %b = conv %x    %c = cat %a, %b       both store into their half of %c

Operands that no kernel can store there are still copied: inputs, constants, and values already placed elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Fused, IndexMap, Position, TupleGet
from compiler.ir.scalar import Expr, Load, const
from compiler.ir.symbolic.bounds import is_provably_at_most
from compiler.ir.symbolic.index_expr import Dim, maximum, minimum, var
from compiler.ir.tile.kernel import Block, For, Kernel, Param, Range, Stmt, Store
from compiler.ir.types import Layout, PhysicalDim, TensorType

Box: TypeAlias = tuple[tuple[Dim, Dim], ...]
"""First index and end of each dimension."""


MAX_INTERLEAVED_ROW = 8
"""Most elements of rows that one kernel computes whole: each is a choice among all operands until the loop is unrolled."""


@dataclass(frozen=True)
class Placement:
    """A value stored in the buffer of `container` at `offsets`, in elements per dimension, for its consumer `concat`."""

    container: Node
    offsets: tuple[int, ...]
    concat: Node


def concat_offsets(n: Node) -> tuple[tuple[int, ...], ...] | None:
    """Return the offset of each operand in a concatenation or padding, or None for other nodes and dynamic offsets.

    None also for operands with one element in each row, as `stack` has them: their producers would not store vectors.
    """
    s = n.structure
    if not isinstance(s, IndexMap) or s.operand_offsets is None or is_interleaving(n):
        return None
    offsets = tuple(tuple(d for d in offset if isinstance(d, int)) for offset in s.operand_offsets(n))
    if any(len(offset) != n.type.rank for offset in offsets):
        return None
    return offsets if all(fits_inside(n, o, offset) for offset, o in zip(offsets, n.operands, strict=True)) else None


def is_interleaving(n: Node) -> bool:
    """Return True if every operand of a concatenation is one element of each of several rows, which are short."""
    is_short = n.type.rank > 1 and 1 < len(n.operands) <= MAX_INTERLEAVED_ROW
    return is_short and n.shape[-1] == len(n.operands) and all(o.shape[-1] == 1 for o in n.operands)


def fits_inside(n: Node, operand: Node, offset: tuple[int, ...]) -> bool:
    """Return True if `operand` provably ends inside `n` when it starts at `offset`."""
    return all(
        is_provably_at_most(at + own, size) for at, own, size in zip(offset, operand.shape, n.shape, strict=True)
    )


def as_concat(n: Node) -> Node | None:
    """Return the node of a fused group that is nothing but a concatenation or padding of inputs; None for others."""
    if not isinstance(n.structure, Fused):
        return None
    (first, *others) = n.attrs["body"].outputs
    inner: Node = first
    if others or any(o not in n.attrs["body"].inputs for o in inner.operands):
        return None
    return inner if concat_offsets(inner) is not None else None


def find_placements(graph: Graph) -> dict[Node, Placement]:
    """Return the values that are stored inside others, each relative to the outermost buffer.

    An operand of a concatenation that is copied into its result has memory outside of it.
    """
    placements: dict[Node, Placement] = {}
    outputs = set(graph.outputs)
    for n in reversed(graph.nodes):
        inner = as_concat(n)
        if inner is None:
            continue
        outer = placements.get(n, Placement(n, (0,) * n.type.rank, n))
        apart = outputs.union(*(m.operands for m in _enclosing_concats(n, placements)))
        for o, i in zip(n.operands, n.attrs["body"].inputs, strict=True):
            if o in placements or o in apart or inner.operands.count(i) != 1 or not is_placeable(graph, o):
                continue
            offset = (concat_offsets(inner) or ())[inner.operands.index(i)]
            placements[o] = Placement(
                outer.container, tuple(a + b for a, b in zip(outer.offsets, offset, strict=True)), n
            )
    return placements


def _enclosing_concats(n: Node, placements: Mapping[Node, Placement]) -> Iterator[Node]:
    """Yield the concatenations and paddings in whose result `n` is stored, from the innermost to the outermost."""
    while n in placements:
        n = placements[n].concat
        yield n


def is_placeable(graph: Graph, n: Node) -> bool:
    """Return True if only kernels write and read a value, so that it may have any layout."""
    producer = n.operands[0] if isinstance(n.structure, TupleGet) else n
    return isinstance(producer.structure, Fused) and all(isinstance(u.structure, Fused) for u in graph.users[n])


def placed_type(type: TensorType, place: Placement) -> TensorType:
    """Return the type of a value stored at `place`: its layout has the margins inside the container."""
    dims = tuple(
        PhysicalDim(d, margin_before=before, margin_after=extent - before - size)
        for d, (before, extent, size) in enumerate(zip(place.offsets, place.container.shape, type.shape, strict=True))
    )
    return TensorType(type.dtype, type.shape, Layout(dims))


def copy_and_fill_kernel(inner: Node, copied: Sequence[Node], name: str) -> Kernel | None:
    """Return the kernel of a concat or pad `inner` that copies the operands `copied` and fills the gaps.

    Its parameters are `copied` and the output.  None if there is nothing to copy or fill.
    """
    assert isinstance(inner.structure, IndexMap)
    shape, boxes = inner.shape, list(operand_boxes(inner))
    params = {o: Param(f"x{k}", o.type) for k, o in enumerate(copied)}
    body = list[Stmt]()
    for k, (o, box) in enumerate(zip(inner.operands, boxes, strict=True)):
        if o in params:
            body += store_loops(f"i{k}_", box, partial(_load_element, params[o], box))
    if inner.structure.fill is not None:
        value = const(inner.structure.fill(inner), inner.dtype)
        gaps = reversed(uncovered_boxes(shape, boxes))  # gaps in a row first, close to the cache lines just written
        for k, gap in enumerate(gaps):
            body += store_loops(f"g{k}_", gap, lambda _: value)
    out = Param("out0", TensorType(inner.dtype, inner.shape), "out")
    return Kernel(name, (*params.values(), out), tuple(body)) if body else None


def operand_boxes(inner: Node) -> Iterator[Box]:
    """Yield the box of each operand in the output of a concatenation or padding."""
    for offset, o in zip(concat_offsets(inner) or (), inner.operands, strict=True):
        yield tuple((at, at + size) for at, size in zip(offset, o.shape, strict=True))


def uncovered_boxes(shape: Sequence[Dim], boxes: Sequence[Box]) -> list[Box]:
    """Return disjoint boxes that cover an array of `shape` except for `boxes`."""
    left: list[Box] = [tuple((0, size) for size in shape)]
    for hole in boxes:
        left = [piece for box in left for piece in _subtract_box(box, hole)]
    return left


def _subtract_box(box: Box, hole: Box) -> Iterator[Box]:
    """Yield `box` without `hole`: the slabs below and above it in the first dimension, then in the next, and so on."""
    for d, ((low, high), (first, end)) in enumerate(zip(box, hole, strict=True)):
        if (low, high) == (first, end):
            continue
        first, end = _clamp(first, low, high), _clamp(end, low, high)
        for start, stop in ((low, first), (end, high)):
            if not is_provably_at_most(stop, start):
                yield (*box[:d], (start, stop), *box[d + 1 :])
        if is_provably_at_most(end, first):
            return
        box = (*box[:d], (first, end), *box[d + 1 :])


def _clamp(d: Dim, low: Dim, high: Dim) -> Dim:
    """Return `d` clamped to low..high, simplified as far as the order is provable."""
    if is_provably_at_most(d, low) or is_provably_at_most(high, d):
        return low if is_provably_at_most(d, low) else high
    d = d if is_provably_at_most(low, d) else maximum(low, d)
    return d if is_provably_at_most(d, high) else minimum(d, high)


def _load_element(source: Param, box: Box, index: Position) -> Expr:
    return Load(source.type.dtype, source.name, tuple(i - low for i, (low, _) in zip(index, box, strict=True)))


def store_loops(prefix: str, box: Box, value: Callable[[Position], Expr]) -> Block:
    """Return parallel loops that store `value(index)` at every index of a box of the output."""
    if any(isinstance(size := high - low, int) and size <= 0 for low, high in box):
        return ()
    index: Position = tuple(low if high - low == 1 else var(f"{prefix}{d}") for d, (low, high) in enumerate(box))
    body: Block = (Store("out0", index, value(index)),)
    for d, (low, high) in reversed(list(enumerate(box))):
        if high - low != 1:
            body = (For(Range(f"{prefix}{d}", low, high), body, parallel=True),)
    return body
