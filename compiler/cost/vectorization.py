"""What lanes along a loop would save, in operations: the score by which loops and layouts are chosen.

A place that moves by one element per step becomes one vector access, one that stays becomes a broadcast.  Any other becomes a
gather that saves nothing, unless the step is short, so that vectors are picked from, or another loop walks along memory, so that
blocks of both are turned in registers.  A vector that may straddle two cache lines costs more than one that does not.  Constants
count as contiguous along any loop that indexes them plainly, because they are packed later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from compiler.analysis.accesses import Access, Accesses, is_contraction
from compiler.cost.contraction import ContractionProblem, best_tiles
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK, is_deinterleaved
from compiler.ir.symbolic.affine import coefficient, contiguous_width
from compiler.ir.symbolic.index_expr import Dim, product, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import Block, Kernel, Range, Reduce, dim_hint
from compiler.ir.types import DType

UNALIGNED_COST = 1.5
"""Cost of a vector access whose place is not known to be a multiple of the vector, relative to one that is."""

DEINTERLEAVE_COST = 1.5
"""Cost of each vector that a strided one is picked from."""

TRANSPOSE_COST = 2
"""Cost of each vector of a block that is turned, besides that of its rows."""

GATHER_COST, SCATTER_COST = 1.5, 5
"""Cost of loading and of storing one lane anywhere."""

ALIASED_GATHER_COST, ALIASED_SCATTER_COST, SET_ALIAS_BYTES = 8, 21, 4096
"""The same where all lanes share a cache set, being a multiple of PAGE bytes apart."""

ALIASED_TRANSPOSE_STORE_COST = 4
"""Cost of each element that is stored by a turned block there, where blocks end inside lines, which leave the cache half written."""


def lane_count(kernel: Kernel, machine: Machine) -> int:
    """Elements per register for the widest float the kernel computes in, else for its widest type."""
    types: list[DType] = [p.type.dtype for p in kernel.params]
    floats = [d for d in types if d.is_float]
    bits = max((max(32, d.bits) for d in (floats or types)), default=32)
    return machine.lanes(bits)


def score_loops(accesses: Accesses, lanes: int, machine: Machine, packed: Collection[str] = ()) -> dict[str, int]:
    """The score of every loop; -1 for those that cannot have lanes.  Parameters in `packed` count as constants do."""
    free = [v for v in accesses.parallel_loops if accesses.local_bytes(v) * lanes <= machine.l2]
    return {v: _loop_score(accesses, v, lanes, machine, packed) if v in free else -1 for v in accesses.loops}


def _loop_score(table: Accesses, v: str, lanes: int, machine: Machine, packed: Collection[str]) -> int:
    """Memory operations saved by taking `lanes` steps of loop `v` at once."""
    r, stmt, around = table.loops[v]
    extent = dim_hint(r.extent, lanes)
    if extent < 4:
        return -1
    saved = 0.0
    for a, times in table.access_groups:
        if v not in a.loop_vars or (table.roles[a.buffer] == "local" and not table.types[a.buffer].rank):
            continue  # a local scalar is no memory
        vectors = a.execution_count // extent * -(-extent // lanes)
        saved += times * (a.execution_count - _access_cost(table, a, v, lanes, vectors, machine, packed))
    for loops, calls in table.arithmetic:
        if v in {x.var for x in loops}:
            count = tile.iteration_count_hint(loops)
            saved += calls * (count - count // extent * -(-extent // lanes))
    if isinstance(stmt, Reduce):  # the lanes are combined at the end
        saved -= tile.iteration_count_hint(around) * 4 * (6 if is_contraction(stmt) else 1)
    return int(saved)


def _access_cost(
    table: Accesses, a: Access, v: str, lanes: int, vectors: int, machine: Machine, packed: Collection[str]
) -> float:
    """What an access costs that is made `vectors` times with lanes along `v`.

    What it takes to pick or join a vector that a contraction loads is shared by its rows; gathers are too slow to hide at all.
    """
    place, step = _lane_stride(table, a, v, lanes, packed), abs(table.stride(a, v) or 0)
    far = step > 0 and step * table.types[a.buffer].dtype.bytes % SET_ALIAS_BYTES == 0
    if place is not None:
        each = UNALIGNED_COST if place == 1 and not _is_aligned(table, a, v, lanes, packed) else 1
    elif _is_deinterleaved(a, step, lanes):
        each = DEINTERLEAVE_COST * step
    elif along := transpose_loops(table, a, v, lanes):
        length = dim_hint(product(r.extent for r in along))
        each = TRANSPOSE_COST + lanes / min(lanes, length)
        if far and a.is_store and length * table.types[a.buffer].dtype.bytes % CACHE_LINE_BYTES:
            each += ALIASED_TRANSPOSE_STORE_COST * lanes
    else:
        return a.execution_count * (
            (ALIASED_SCATTER_COST if far else SCATTER_COST)
            if a.is_store
            else (ALIASED_GATHER_COST if far else GATHER_COST)
        )
    return vectors * (1 + (each - 1) / _accumulator_rows(table, a, v, lanes, machine))


def _is_deinterleaved(a: Access, step: int, lanes: int) -> bool:
    """Whether a load of elements `step` apart takes them from whole vectors."""
    return not a.is_store and is_deinterleaved(step, lanes)


def transpose_loops(table: Accesses, a: Access, v: str, lanes: int) -> tuple[Range, ...]:
    """The loop along which `a` walks memory where `v` walks across it, so that blocks of both can be turned in registers.

    Where it is too short, also the loop that goes on where it ends, before it; none where there are no such loops.
    Around a reduction only a contraction's rows come in blocks.
    """
    step = abs(table.stride(a, v) or 0)
    if a.is_masked or step < 2 or _is_deinterleaved(a, step, lanes) or isinstance(a.stmt, Reduce):
        return ()
    free = table.parallel_loops - {v} - table.local_scopes.get(a.buffer, frozenset())

    def walks(by: Dim) -> Range | None:
        loops = (
            r for r in a.loops if r.var in free and table.stride(a, r.var) == by and table.has_constant_strides(r.var)
        )
        return next((r for r in loops if not (sums := table.reductions(r.var)) or any(map(is_contraction, sums))), None)

    last = walks(1)
    if last is None or dim_hint(last.extent) >= MIN_TRANSPOSE_BLOCK:
        return () if last is None else (last,)
    before = walks(last.extent) if dim_hint(last.extent) > 1 else None
    return (before, last) if before and dim_hint(before.extent * last.extent) >= MIN_TRANSPOSE_BLOCK else ()


def _accumulator_rows(table: Accesses, a: Access, v: str, lanes: int, machine: Machine) -> int:
    """How many rows of accumulators use a vector that a contraction loads with lanes along `v`; 1 for any other access."""
    added = {r.var for r in tile.stmt_ranges(a.stmt)}
    if not is_contraction(a.stmt) or v in added:
        return 1
    again = [r for r in a.loops if r.var in table.parallel_loops - added and not table.depends_on(a, r.var)]
    rows = max(map(tile.extent_hint, again), default=1)
    return _register_tile_rows(rows, tile.extent_hint(table.loops[v][0]), lanes, machine)


@cache
def _register_tile_rows(rows: int, columns: int, lanes: int, machine: Machine) -> int:
    """The rows of a contraction's block of accumulators."""
    return best_tiles(rows, [ContractionProblem(columns, lanes, 1, 1)], machine)[0].rows


def _lane_stride(table: Accesses, a: Access, v: str, lanes: int, packed: Collection[str]) -> int | None:
    """1 where successive `v` meet successive elements, 0 where they meet the same one, None where neither."""
    step = table.stride(a, v)
    if step == 1 or (step == 0 and not (a.is_store and table.roles[a.buffer] != "local")):
        return step
    if step is None:
        return None
    if table.roles[a.buffer] == "const":
        return 1 if _is_packable(a, v, dim_hint(table.loops[v][0].extent, lanes), lanes) else None
    return 1 if a.buffer in packed and a.index.count(var(v)) == 1 else None


def _is_packable(a: Access, v: str, extent: int, lanes: int) -> bool:
    """Whether a constant can be stored so that vectors along `v` lie in it as they are read: its panels are whole vectors, or one is less."""
    moving = [d for d in a.index if v in variables(d)]
    width = contiguous_width(moving[0], v, 0) if len(moving) == 1 else None
    return width is not None and (width % lanes == 0 or width == extent < lanes)


def _is_aligned(table: Accesses, a: Access, v: str, lanes: int, packed: Collection[str]) -> bool:
    """Whether vectors along `v` start at multiples of their length, and those of a contraction follow one another."""
    if table.roles[a.buffer] == "const" or a.buffer in packed or v in table.local_scopes.get(a.buffer, ()):
        return True
    local = table.roles[a.buffer] == "local"
    if not local and is_contraction(a.stmt) and v not in {r.var for r in tile.stmt_ranges(a.stmt)}:
        return False  # each step of the sum meets another line
    offset = table.offset(a)
    steps = [coefficient(offset, name) for name in variables(offset) - {v}]
    rest = offset if isinstance(offset, int) else next((c for mono, c in offset.terms if not mono), 0)
    return rest % lanes == 0 and all(s is not None and s % lanes == 0 for s in steps)


def best_disjoint_loops(body: Block, scores: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """The loops of `body`, no two in one another, with the highest total score."""
    total, chosen = 0, tuple[str, ...]()
    for stmt in body:
        if not (ranges := tile.stmt_ranges(stmt)):
            continue
        score, loops = best_disjoint_loops(tile.stmt_body(stmt), scores)
        for r in ranges:
            if scores[r.var] > score:
                score, loops = scores[r.var], (r.var,)
        total, chosen = total + score, (*chosen, *loops)
    return total, chosen
