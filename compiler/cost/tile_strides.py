"""Strides of accesses inside the tile of a loop and from tile to tile, found by evaluating addresses.

A packed layout is contiguous inside a tile and has another stride between tiles, which no single coefficient describes.
"""

from __future__ import annotations

from functools import cache
from math import gcd, prod

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.machine import CACHE_LINE_BYTES
from compiler.ir.symbolic.index_expr import Dim, evaluate, substitute, var, variables
from compiler.ir.tile.kernel import Range, dim_hint, extent_hint


class TileStrides:
    """Strides in elements under the size hints; None where an index is loaded from memory or is not affine."""

    def __init__(self, accesses: Accesses) -> None:
        self.accesses = accesses
        self.ranges = {v: r for v, (r, _, _) in accesses.loops.items()}
        self.strips = {v: r.lo + var(v) for v, r in self.ranges.items() if variables(r.lo)}
        self.first = {v: 0 if v in self.strips else dim_hint(r.lo, 0) for v, r in self.ranges.items()}
        self.in_tile, self.step, self.offset = cache(self._in_tile), cache(self._step), cache(self._offset)
        self._base = cache(lambda a: self._address(a, "", 0))

    def private_copies(self, a: Access) -> int:
        """Return the copies of a local buffer that the tiles around its declaration hold."""
        return prod(self.ranges[v].tile for v in self.accesses.local_scopes.get(a.buffer, ()))

    def first_address(self, a: Access) -> int:
        """Return the address of the first element that `a` accesses, in elements of its buffer."""
        return self._base(a)

    def crossing_share(self, a: Access, lane: str, size: int) -> float:
        """Return the share of contiguous vectors of `size` bytes along loop `lane` that lie in two cache lines.

        Buffers begin at a cache line, and addresses are as likely as their strides allow.
        """
        element = self.accesses.types[a.buffer].dtype.bytes
        steps = [self.in_tile(a, v) if r.tile > 1 and v != lane else self.step(a, v) for v, r in self.ranges.items()]
        strides = [1 if s is None else s for s in steps]
        grid = gcd(CACHE_LINE_BYTES, size, *(element * s for s in strides))
        first = element * self.first_address(a) % grid
        places = range(first, CACHE_LINE_BYTES, grid)
        return sum(p + size > CACHE_LINE_BYTES for p in places) / len(places)

    def _in_tile(self, a: Access, v: str) -> int | None:
        """Return the stride from one index of `v` to the next in the same tile."""
        r, private = self.ranges[v], self.accesses.local_scopes.get(a.buffer, ())
        if v in private:
            return 1 if r.lanes else prod(self.ranges[x].tile for x in private if self.ranges[x].lanes)
        if self._is_loaded(a, v):
            return None
        if r.tile == 1:
            return self._step(a, v)
        one, last = self._moved(a, v, 1), self._moved(a, v, r.tile - 1)
        return one if last == one * (r.tile - 1) else None

    def _step(self, a: Access, v: str) -> int | None:
        """Return the mean stride from one tile of `v` to the next; 0 for private copies, which every tile uses again."""
        r = self.ranges[v]
        if v in self.accesses.local_scopes.get(a.buffer, ()):
            return 0
        if self._is_loaded(a, v):
            return None
        steps = max(1, -(-extent_hint(r) // r.tile) - 1)
        return self._moved(a, v, steps * r.tile) // steps

    def _moved(self, a: Access, v: str, indices: int) -> int:
        return self._address(a, v, indices) - self._base(a)

    def _address(self, a: Access, v: str, index: int) -> int:
        offset = self.offset(a)
        values = {name: self.first.get(name, 0) for name in variables(offset)}
        if v in values:
            values[v] += index
        return evaluate(offset, values)

    def _offset(self, a: Access) -> Dim:
        """Return the offset of `a`, with loops over strips counted from the start of each strip."""
        offset = self.accesses.offset(a)
        for v in reversed(self.strips):  # a strip starts at an index of a loop around it
            offset = substitute(offset, {v: self.strips[v]})
        return offset

    def _is_loaded(self, a: Access, v: str) -> bool:
        """Return True if the address uses a value that depends on `v` other than `v` itself."""
        names = variables(self.offset(a)) - self.ranges.keys()
        return any(v in self.accesses.loops_by_name.get(n, frozenset()) for n in names)


def tile_extent(r: Range) -> int:
    """Return the indices of one tile of a loop."""
    return min(r.tile, max(1, extent_hint(r)))


def trip_count_hint(r: Range) -> int:
    """Return the iterations of a loop, each over one tile."""
    return max(1, -(-extent_hint(r) // r.tile))
