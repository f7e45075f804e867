"""What lanes along a loop would save, in operations: the score by which loops and layouts are chosen.

A place that moves by one element per step becomes one vector access, one that stays becomes a broadcast.  Any other becomes a
gather that saves nothing, unless the step is short, so that vectors are picked from, or another loop walks along memory, so that
blocks of both are turned in registers.  A vector that may straddle two cache lines costs more than one that does not.  Constants
count as contiguous along any loop that indexes them plainly, because they are packed later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from compiler.ir import tile
from compiler.ir.index import Dim, product, var, variables
from compiler.ir.linear import coefficient, panel
from compiler.ir.tile import Block, Kernel, Range, Reduce, known
from compiler.ir.types import DType
from compiler.passes.access import Access, Accesses, contraction
from compiler.perf.contraction import Shape, best_tiles
from compiler.perf.machine import LINE, Machine
from compiler.perf.shuffles import BLOCK, picked

STRADDLE = 1.5
"""Cost of a vector access whose place is not known to be a multiple of the vector, relative to one that is."""

PICK = 1.5
"""Cost of each vector that a strided one is picked from."""

TURN = 2
"""Cost of each vector of a block that is turned, besides that of its rows."""

GATHER, SCATTER = 1.5, 5
"""Cost of loading and of storing one lane anywhere."""

GATHER_FAR, SCATTER_FAR, PAGE = 8, 21, 4096
"""The same where all lanes share a cache set, being a multiple of PAGE bytes apart."""

TURN_FAR = 4
"""Cost of each element that is stored by a turned block there, where blocks end inside lines, which leave the cache half written."""


def lanes_for(kernel: Kernel, machine: Machine) -> int:
    """Elements per register for the widest float the kernel computes in, else for its widest type."""
    types: list[DType] = [p.type.dtype for p in kernel.params]
    floats = [d for d in types if d.is_float]
    bits = max((max(32, d.bits) for d in (floats or types)), default=32)
    return machine.lanes(bits)


def score_loops(table: Accesses, lanes: int, machine: Machine, packed: Collection[str] = ()) -> dict[str, int]:
    """The score of every loop; -1 for those that cannot have lanes.  Parameters in `packed` count as constants do."""
    free = [v for v in table.free if table.held(v) * lanes <= machine.l2]
    return {v: _score(table, v, lanes, machine, packed) if v in free else -1 for v in table.loops}


def _score(table: Accesses, v: str, lanes: int, machine: Machine, packed: Collection[str]) -> int:
    """Memory operations saved by taking `lanes` steps of loop `v` at once."""
    r, stmt, around = table.loops[v]
    extent = known(r.extent, lanes)
    if extent < 4:
        return -1
    saved = 0.0
    for a, times in table.alike:
        if v not in a.inside or (table.roles[a.buffer] == "local" and not table.types[a.buffer].rank):
            continue  # a local scalar is no memory
        vectors = a.count // extent * -(-extent // lanes)
        saved += times * (a.count - _cost(table, a, v, lanes, vectors, machine, packed))
    for loops, calls in table.arithmetic:
        if v in {x.var for x in loops}:
            count = tile.known_steps(loops)
            saved += calls * (count - count // extent * -(-extent // lanes))
    if isinstance(stmt, Reduce):  # the lanes are combined at the end
        saved -= tile.known_steps(around) * 4 * (6 if contraction(stmt) else 1)
    return int(saved)


def _cost(
    table: Accesses, a: Access, v: str, lanes: int, vectors: int, machine: Machine, packed: Collection[str]
) -> float:
    """What an access costs that is made `vectors` times with lanes along `v`.

    What it takes to pick or join a vector that a contraction loads is shared by its rows; gathers are too slow to hide at all.
    """
    place, step = _place(table, a, v, lanes, packed), abs(table.step(a, v) or 0)
    far = step > 0 and step * table.types[a.buffer].dtype.bytes % PAGE == 0
    if place is not None:
        each = STRADDLE if place == 1 and not _aligned(table, a, v, lanes, packed) else 1
    elif _picked(a, step, lanes):
        each = PICK * step
    elif along := turned_along(table, a, v, lanes):
        length = known(product(r.extent for r in along))
        each = TURN + lanes / min(lanes, length)
        if far and a.is_store and length * table.types[a.buffer].dtype.bytes % LINE:
            each += TURN_FAR * lanes
    else:
        return a.count * ((SCATTER_FAR if far else SCATTER) if a.is_store else (GATHER_FAR if far else GATHER))
    return vectors * (1 + (each - 1) / _rows(table, a, v, lanes, machine))


def _picked(a: Access, step: int, lanes: int) -> bool:
    """Whether a load of elements `step` apart takes them from whole vectors."""
    return not a.is_store and picked(step, lanes)


def turned_along(table: Accesses, a: Access, v: str, lanes: int) -> tuple[Range, ...]:
    """The loop along which `a` walks memory where `v` walks across it, so that blocks of both can be turned in registers.

    Where it is too short, also the loop that goes on where it ends, before it; none where there are no such loops.
    Around a reduction only a contraction's rows come in blocks.
    """
    step = abs(table.step(a, v) or 0)
    if a.masked or step < 2 or _picked(a, step, lanes) or isinstance(a.stmt, Reduce):
        return ()
    free = table.free - {v} - table.private.get(a.buffer, frozenset())

    def walks(by: Dim) -> Range | None:
        loops = (r for r in a.loops if r.var in free and table.step(a, r.var) == by and table.linear(r.var))
        return next((r for r in loops if not (sums := table.sums(r.var)) or any(map(contraction, sums))), None)

    last = walks(1)
    if last is None or known(last.extent) >= BLOCK:
        return () if last is None else (last,)
    before = walks(last.extent) if known(last.extent) > 1 else None
    return (before, last) if before and known(before.extent * last.extent) >= BLOCK else ()


def _rows(table: Accesses, a: Access, v: str, lanes: int, machine: Machine) -> int:
    """How many rows of accumulators use a vector that a contraction loads with lanes along `v`; 1 for any other access."""
    added = {r.var for r in tile.ranges(a.stmt)}
    if not contraction(a.stmt) or v in added:
        return 1
    again = [r for r in a.loops if r.var in table.free - added and not table.follows(a, r.var)]
    rows = max(map(tile.known_extent, again), default=1)
    return _height(rows, tile.known_extent(table.loops[v][0]), lanes, machine)


@cache
def _height(rows: int, columns: int, lanes: int, machine: Machine) -> int:
    """The rows of a contraction's block of accumulators."""
    return best_tiles(rows, [Shape(columns, lanes, 1, 1)], machine)[0].rows


def _place(table: Accesses, a: Access, v: str, lanes: int, packed: Collection[str]) -> int | None:
    """1 where successive `v` meet successive elements, 0 where they meet the same one, None where neither."""
    step = table.step(a, v)
    if step == 1 or (step == 0 and not (a.is_store and table.roles[a.buffer] != "local")):
        return step
    if step is None:
        return None
    if table.roles[a.buffer] == "const":
        return 1 if _packs(a, v, known(table.loops[v][0].extent, lanes), lanes) else None
    return 1 if a.buffer in packed and a.index.count(var(v)) == 1 else None


def _packs(a: Access, v: str, extent: int, lanes: int) -> bool:
    """Whether a constant can be stored so that vectors along `v` lie in it as they are read: its panels are whole vectors, or one is less."""
    moving = [d for d in a.index if v in variables(d)]
    width = panel(moving[0], v, 0) if len(moving) == 1 else None
    return width is not None and (width % lanes == 0 or width == extent < lanes)


def _aligned(table: Accesses, a: Access, v: str, lanes: int, packed: Collection[str]) -> bool:
    """Whether vectors along `v` start at multiples of their length, and those of a contraction follow one another."""
    if table.roles[a.buffer] == "const" or a.buffer in packed or v in table.private.get(a.buffer, ()):
        return True
    local = table.roles[a.buffer] == "local"
    if not local and contraction(a.stmt) and v not in {r.var for r in tile.ranges(a.stmt)}:
        return False  # each step of the sum meets another line
    offset = table.offset(a)
    steps = [coefficient(offset, name) for name in variables(offset) - {v}]
    rest = offset if isinstance(offset, int) else next((c for mono, c in offset.terms if not mono), 0)
    return rest % lanes == 0 and all(s is not None and s % lanes == 0 for s in steps)


def best_set(body: Block, scores: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """The loops of `body`, no two in one another, with the highest total score."""
    total, chosen = 0, tuple[str, ...]()
    for stmt in body:
        if not (ranges := tile.ranges(stmt)):
            continue
        score, loops = best_set(tile.blocks(stmt), scores)
        for r in ranges:
            if scores[r.var] > score:
                score, loops = scores[r.var], (r.var,)
        total, chosen = total + score, (*chosen, *loops)
    return total, chosen
