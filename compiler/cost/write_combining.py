"""Cache lines that stores fill part by part, in several iterations of a loop.

A core collects the parts of a line that bypasses the caches in one of a few buffers.  Where more lines are open than it has
buffers, each part goes to memory by itself, which takes as long as a line from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from compiler.analysis.accesses import Access
from compiler.cost.machine import CACHE_LINE_BYTES
from compiler.cost.tile_strides import TileStrides, tile_extent, trip_count_hint


def uncombined_buffers(strides: TileStrides, stores: Iterable[Access], limit: int) -> frozenset[str]:
    """Return the buffers whose stores leave lines open where those of `stores` leave more than `limit` open together."""
    opened = [(store.buffer, *open_lines(strides, store)) for store in stores]
    totals = Counter[str]()
    for _, loop, lines in opened:
        totals[loop] += lines
    return frozenset(buffer for buffer, loop, lines in opened if lines and totals[loop] > limit)


def open_lines(strides: TileStrides, store: Access) -> tuple[str, int]:
    """Return the number of lines that a store leaves open, and the loop whose next iteration goes on with them.

    Where no iteration does, that is the outermost loop.  Single elements and vectors that are not contiguous count as none:
    they are stored through the caches.
    """
    element = strides.accesses.types[store.buffer].dtype.bytes
    lane = next((r for r in store.loops if r.lanes), None)
    if lane is None or strides.in_tile(store, lane.var) != 1:
        return "", 0
    run, lines = element * tile_extent(lane), 1
    rows = [(strides.in_tile(store, r.var) or 0, tile_extent(r)) for r in store.loops if r is not lane]
    for stride, count in sorted(rows):
        if stride == run // element:
            run *= count
        else:
            lines *= count
    for r in reversed(store.loops):
        if run % CACHE_LINE_BYTES == 0:
            return r.var, 0
        if trip_count_hint(r) == 1:
            continue
        if strides.step(store, r.var) == run // element:
            return r.var, lines
        lines *= trip_count_hint(r)
    return store.loops[0].var, lines
