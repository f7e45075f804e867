"""Values stored inside others: what is padded or concatenated is written where it will stand, and the copy falls away.

    %y = conv %x     %p = pad %y     %z = conv %p          the kernel of %y stores into the middle of %p
    %a = conv %x     %b = conv %x    %c = cat %a, %b       both store into their half of %c

Only what nobody else can store there stays a copy: inputs, constants, and values that already have another place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
"""The first index and the end of each dimension."""


@dataclass(frozen=True)
class Placement:
    """Where a value lies: in the array of `host`, `before` elements in along each dimension, as `user` would put it."""

    host: Node
    offsets: tuple[int, ...]
    concat: Node


def concat_offsets(n: Node) -> tuple[tuple[int, ...], ...] | None:
    """Where a node that puts its operands side by side puts each of them; None for any other node or unknown sizes."""
    s = n.structure
    if not isinstance(s, IndexMap) or s.operand_offsets is None:
        return None
    found = tuple(tuple(d for d in offset if isinstance(d, int)) for offset in s.operand_offsets(n))
    known = all(len(f) == n.type.rank for f in found)
    return found if known and all(fits_inside(n, o, f) for f, o in zip(found, n.operands, strict=True)) else None


def fits_inside(n: Node, operand: Node, offset: tuple[int, ...]) -> bool:
    """Whether `operand` is known to end inside `n` if it stands `offset` elements in."""
    return all(
        is_provably_at_most(at + own, size) for at, own, size in zip(offset, operand.shape, n.shape, strict=True)
    )


def as_concat(n: Node) -> Node | None:
    """The one node of a group that does nothing but put its operands side by side."""
    if not isinstance(n.structure, Fused):
        return None
    (first, *others) = n.attrs["body"].outputs
    inner: Node = first
    if others or any(o not in n.attrs["body"].inputs for o in inner.operands):
        return None
    return inner if concat_offsets(inner) is not None else None


def find_placements(graph: Graph) -> dict[Node, Placement]:
    """The values that are stored inside others, each with the outermost array around it."""
    found: dict[Node, Placement] = {}
    outputs = set(graph.outputs)
    for n in reversed(graph.nodes):
        inner = as_concat(n)
        if inner is None:
            continue
        around = found.get(n, Placement(n, (0,) * n.type.rank, n))
        for o, i in zip(n.operands, n.attrs["body"].inputs, strict=True):
            if o in found or o in outputs or inner.operands.count(i) != 1 or not is_placeable(graph, o):
                continue
            offset = (concat_offsets(inner) or ())[inner.operands.index(i)]
            found[o] = Placement(around.host, tuple(a + b for a, b in zip(around.offsets, offset, strict=True)), n)
    return found


def is_placeable(graph: Graph, n: Node) -> bool:
    """Whether kernels alone write and read a value, so that it may lie anywhere."""
    maker = n.operands[0] if isinstance(n.structure, TupleGet) else n
    return isinstance(maker.structure, Fused) and all(isinstance(u.structure, Fused) for u in graph.users[n])


def placed_type(type: TensorType, place: Placement) -> TensorType:
    """The type of a value that lies at `place`."""
    digits = tuple(
        PhysicalDim(d, margin_before=before, margin_after=extent - before - size)
        for d, (before, extent, size) in enumerate(zip(place.offsets, place.host.shape, type.shape, strict=True))
    )
    return TensorType(type.dtype, type.shape, Layout(digits))


def copy_and_fill_kernel(inner: Node, copied: Sequence[Node], name: str) -> Kernel | None:
    """The kernel that copies the operands in `copied`, its parameters, and fills the gaps; None where nothing is left to do."""
    assert isinstance(inner.structure, IndexMap)
    shape, boxes = inner.shape, list(operand_boxes(inner))
    params = {o: Param(f"x{k}", o.type) for k, o in enumerate(copied)}
    body = list[Stmt]()
    for k, (o, box) in enumerate(zip(inner.operands, boxes, strict=True)):
        if o in params:
            body += _store_loops(f"i{k}_", box, partial(_load_element, params[o], box))
    if inner.structure.fill is not None:
        value = const(inner.structure.fill(inner), inner.dtype)
        for k, gap in enumerate(
            reversed(uncovered_boxes(shape, boxes))
        ):  # beside a row with the row, whose line is near
            body += _store_loops(f"g{k}_", gap, lambda _: value)
    out = Param("out0", TensorType(inner.dtype, inner.shape), "out")
    return Kernel(name, (*params.values(), out), tuple(body)) if body else None


def operand_boxes(inner: Node) -> Iterator[Box]:
    """Where each operand of a node that puts them side by side comes to lie."""
    for offset, o in zip(concat_offsets(inner) or (), inner.operands, strict=True):
        yield tuple((at, at + size) for at, size in zip(offset, o.shape, strict=True))


def uncovered_boxes(shape: Sequence[Dim], boxes: Sequence[Box]) -> list[Box]:
    """The rest of an array as boxes that do not meet."""
    left: list[Box] = [tuple((0, size) for size in shape)]
    for hole in boxes:
        left = [part for box in left for part in _subtract_box(box, hole)]
    return left


def _subtract_box(box: Box, hole: Box) -> Iterator[Box]:
    """`box` less `hole`: what is below and above it in the first dimension, then in the next of the rest, and so on."""
    for d, ((low, high), (first, end)) in enumerate(zip(box, hole, strict=True)):
        if (low, high) == (first, end):
            continue
        first, end = (_clamp(place, low, high) for place in (first, end))
        for start, stop in ((low, first), (end, high)):
            if not is_provably_at_most(stop, start):
                yield (*box[:d], (start, stop), *box[d + 1 :])
        if is_provably_at_most(end, first):
            return
        box = (*box[:d], (first, end), *box[d + 1 :])


def _clamp(place: Dim, low: Dim, high: Dim) -> Dim:
    """The place in low..high nearest to `place`."""
    if is_provably_at_most(place, low) or is_provably_at_most(high, place):
        return low if is_provably_at_most(place, low) else high
    place = place if is_provably_at_most(low, place) else maximum(low, place)
    return place if is_provably_at_most(place, high) else minimum(place, high)


def _load_element(source: Param, box: Box, index: Position) -> Expr:
    return Load(source.type.dtype, source.name, tuple(i - low for i, (low, _) in zip(index, box, strict=True)))


def _store_loops(prefix: str, box: Box, value: Callable[[Position], Expr]) -> Block:
    """Loops that store `value(index)` everywhere in a box of the output."""
    if any(isinstance(size := high - low, int) and size <= 0 for low, high in box):
        return ()
    index: Position = tuple(low if high - low == 1 else var(f"{prefix}{d}") for d, (low, high) in enumerate(box))
    body: Block = (Store("out0", index, value(index)),)
    for d, (low, high) in reversed(list(enumerate(box))):
        if high - low != 1:
            body = (For(Range(f"{prefix}{d}", low, high), body, parallel=True),)
    return body
