"""Parts of a tensor: views that share it out among themselves, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Position, index_vars, is_view, through_view
from compiler.ir.symbolic.index_expr import Dim, substitute


@dataclass(frozen=True)
class Split:
    """A shape of a tensor with an axis for each dimension inside a part, and axes that number the parts, the slowest first."""

    shape: tuple[Dim, ...]
    inside: tuple[int, ...]
    numbers: tuple[int, ...]


def split_into(x: Node, parts: Sequence[Node]) -> Split | None:
    """Return the split of `x` whose parts are `parts`, of one shape and in this order; None if there is none.

    Along a dimension parts take turns by element (x[0::2], x[1::2]) or are blocks (x[:4], x[4:]).
    """
    size = parts[0].shape
    positions = [p for p in (position_in(x, part) for part in parts) if p is not None]
    if len(positions) < len(parts) or x.type.rank != len(size):
        return None
    shape, inside = list[Dim](), list[int]()
    starts, in_order = dict[int, list[Dim]](), dict[int, range]()  # along the axes that number the parts
    for d, (extent, n) in enumerate(zip(x.shape, size, strict=True)):
        i, at = index_vars("i", len(size))[d], [p[d] for p in positions]
        axis = len(shape)
        if extent == n and all(index == i for index in at):
            inside.append(axis)
            shape.append(n)
            continue
        if not isinstance(extent, int) or not isinstance(n, int) or n == 0 or extent % n:
            return None
        count, start = extent // n, [substitute(index, {f"i{d}": 0}) for index in at]
        if at == [first + count * i for first in start]:
            inside.append(axis)
            shape += [n, count]
            starts[axis + 1], in_order[axis + 1] = start, range(count)
        elif at == [first + i for first in start]:
            inside.append(axis + 1)
            shape += [count, n]
            starts[axis], in_order[axis] = start, range(0, extent, n)
        else:
            return None
    numbers = sorted(starts, key=lambda axis: -next((k for k, first in enumerate(starts[axis]) if first != 0), 0))
    found = zip(*(starts[axis] for axis in numbers), strict=True)
    if list(found) != list(product(*(in_order[axis] for axis in numbers))):
        return None
    return Split(tuple(shape), tuple(inside), tuple(numbers))


def position_in(x: Node, n: Node) -> Position | None:
    """Return the position in `x` of an element of `n`, a view of it; None if it is none."""
    at = index_vars("i", n.type.rank)
    while n != x and is_view(n.structure, n) and len(n.operands) == 1:
        n, at = through_view(n, at, {})
    return at if n == x else None
