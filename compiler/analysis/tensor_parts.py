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
    shape, inside, digits = list[Dim](), list[int](), dict[int, list[Dim]]()
    for d, (extent, n) in enumerate(zip(x.shape, size, strict=True)):
        i, found = index_vars("i", len(size))[d], [p[d] for p in positions]
        if all(at == i for at in found) and extent == n:
            inside.append(len(shape))
            shape.append(n)
            continue
        starts = [substitute(at, {f"i{d}": 0}) for at in found]
        if not isinstance(extent, int) or not isinstance(n, int) or n == 0 or extent % n:
            return None
        count = extent // n
        if all(at == start + count * i for at, start in zip(found, starts, strict=True)):
            inside.append(len(shape))
            digits[len(shape) + 1] = starts
            shape += [n, count]
        elif all(at == start + i for at, start in zip(found, starts, strict=True)):
            inside.append(len(shape) + 1)
            digits[len(shape)] = [start // n if isinstance(start, int) and start % n == 0 else -1 for start in starts]
            shape += [count, n]
        else:
            return None
    numbers = sorted(digits, key=lambda axis: -next((k for k, digit in enumerate(digits[axis]) if digit), 0))
    counted = product(*(range(count) for axis in numbers if isinstance(count := shape[axis], int)))
    in_order = list(zip(*(digits[axis] for axis in numbers), strict=True)) == list(counted)
    return Split(tuple(shape), tuple(inside), tuple(numbers)) if in_order else None


def position_in(x: Node, n: Node) -> Position | None:
    """Return the position in `x` of an element of `n`, a view of it; None if it is none."""
    at = index_vars("i", n.type.rank)
    while n != x and is_view(n.structure, n):
        n, at = through_view(n, at, {})
    return at if n == x else None
