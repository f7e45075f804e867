"""Cost model of vectorization: the operations that lanes along a loop save, by which loops and layouts are chosen.

An access with stride 1 becomes a vector access, one with stride 0 a broadcast.  A load with a short stride is
deinterleaved, an access that is contiguous along another loop is transposed in registers, and any other is a gather or
scatter, in which lanes past the end of the loop cost as much as others.  An unaligned vector access costs more, as it may straddle two cache lines.  Constants count
as contiguous along any loop that plainly indexes one of their dimensions, because they are packed later.

Costs are in operations: memory accesses, of a vector or a scalar alike, and arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

from compiler.analysis.accesses import Access, Accesses
from compiler.analysis.scanned_rows import is_scan_of_rows
from compiler.cost.contraction import ContractionProblem, best_tiles
from compiler.cost.line_traffic import PAGE_BYTES
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.shuffles import MIN_TRANSPOSE_BLOCK, is_deinterleaved, is_interleaved, is_spread
from compiler.ir.symbolic.affine import coefficient, contiguous_width
from compiler.ir.symbolic.index_expr import Dim, interval, product, var, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, dim_hint
from compiler.ir.types import DType

SHARE_OF_LONG_SIZES = 0.5
"""Share of the calls in which a dynamic size, of a batch say, is not less than a vector: as likely as not."""


def lane_count(kernel: Kernel, machine: Machine) -> int:
    """Return the lanes of the widest float that the kernel computes in (at least 32 bits), else of its widest type."""
    types: list[DType] = [p.type.dtype for p in kernel.params]
    floats = [d for d in types if d.is_float]
    bits = max((max(32, d.bits) for d in (floats or types)), default=32)
    return machine.lanes(bits)


def scalar_ops(accesses: Accesses) -> int:
    """Return the operations of the scalar program, of which `score_loops` says how many lanes save."""
    memory = sum(times * a.execution_count for a, times in accesses.access_groups)
    return memory + sum(calls * count for _, count, calls in accesses.operation_counts)


def score_loops(accesses: Accesses, lanes: int, machine: Machine, packed: Collection[str] = ()) -> dict[str, int]:
    """Return the score of every loop, -1 if it cannot be vectorized; parameters in `packed` count as constants."""
    allowed = [v for v in accesses.parallel_loops if accesses.local_bytes(v) * lanes <= machine.l2]
    return {v: _loop_score(accesses, v, lanes, machine, packed) if v in allowed else -1 for v in accesses.loops}


def _loop_score(table: Accesses, v: str, lanes: int, machine: Machine, packed: Collection[str]) -> int:
    """Return the operations saved by executing `lanes` iterations of loop `v` at once."""
    r, stmt, around = table.loops[v]
    extent = dim_hint(r.extent, lanes)
    if extent < machine.min_lane_iterations:
        return -1
    saved = 0.0
    for a, times in table.access_groups:
        if v not in a.loop_vars or (table.roles[a.buffer] == "local" and not table.types[a.buffer].rank):
            continue  # a local scalar is a register
        vectors = a.execution_count // extent * -(-extent // lanes)
        saved += times * (a.execution_count - _access_cost(table, a, v, lanes, vectors, machine, packed))
    for loop_vars, count, calls in table.operation_counts:
        if v in loop_vars:
            saved += calls * (count - count // extent * -(-extent // lanes))
    if isinstance(stmt, Reduce):  # the lanes are combined at the end
        cost = machine.contraction_combine_ops if is_contraction(stmt) else machine.combine_ops
        saved -= tile.iteration_count_hint(x for x in around if x not in stmt.ranges) * cost
    return int(saved * (SHARE_OF_LONG_SIZES if may_be_short(r, lanes) and is_strided(table, v) else 1))


def may_be_short(r: Range, lanes: int) -> bool:
    """Return True if a loop of a dynamic size may have less iterations than a vector has lanes."""
    bounds = interval(r.extent, {})
    return not isinstance(r.extent, int) and (bounds is None or bounds[0] < lanes)


def is_strided(table: Accesses, v: str) -> bool:
    """Return True if every access that varies along loop `v` steps over elements, as those of a batch do."""
    strides = [table.stride(a, v) for a in table.all if table.depends_on(a, v)]
    return all(s is None or abs(s) > 1 for s in strides)


def _access_cost(
    table: Accesses, a: Access, v: str, lanes: int, vectors: int, machine: Machine, packed: Collection[str]
) -> float:
    """Return the cost of an access that executes `vectors` times with lanes along `v`.

    The rows of a contraction share the cost of the shuffles for a vector that they load, and of its conversion to f32, but not
    that of a gather.  An element that is broadcast is converted for each row.
    """
    lane_stride, step = _lane_stride(table, a, v, lanes, packed), abs(table.stride(a, v) or 0)
    element_bytes = table.types[a.buffer].dtype.bytes
    converted = is_contraction(a.consumer) and not a.is_store and table.types[a.buffer].dtype.is_reduced_float
    aliased = step > 0 and step * element_bytes % machine.way_bytes == 0
    if lane_stride is not None:
        each = machine.unaligned_cost if lane_stride == 1 and not _is_aligned(table, a, v, lanes, packed) else 1
    elif _is_deinterleaved(table, a, v, lanes):
        each = machine.deinterleave_cost * step
    elif along := transpose_loops(table, a, v, lanes):
        length = dim_hint(product(r.extent for r in along))
        if is_interleaved(length, step, lanes):
            return vectors * machine.deinterleave_cost * length
        each = machine.transpose_cost + (1 + page_walk_ops(table, a, v, machine)) * lanes / min(lanes, length)
        if aliased and a.is_store and length * element_bytes % CACHE_LINE_BYTES:
            each += machine.aliased_transpose_cost * lanes
    elif any(table.stride(a, r.var) == 1 and is_scan_of_rows(table, table.loops[r.var][1], lanes) for r in a.loops):
        each = machine.transpose_cost + 1  # by the pass transpose-scans
    elif a.is_store and machine.has_mask_registers and is_spread(step, lanes):
        return vectors * machine.deinterleave_cost * step
    elif a.is_store:
        return vectors * lanes * (machine.aliased_scatter_cost if aliased else machine.scatter_cost)
    else:
        return vectors * lanes * (machine.aliased_gather_cost if aliased else machine.gather_cost)
    rows = _accumulator_rows(table, a, v, lanes, machine) if each != 1 or converted else 1
    return vectors * (1 + (each - 1) / rows + converted / (rows if lane_stride else 1))


def page_walk_ops(table: Accesses, a: Access, v: str, machine: Machine) -> float:
    """Return the operations in the time of a page walk; 0 if rows of blocks of `a` need none.

    Before the next columns of a row, blocks with lanes along `v` go across all rows; those of all buffers may lie in too many pages.
    """
    if _step_bytes(table, a, v) < PAGE_BYTES:
        return 0.0
    rows = {b.buffer: distant_rows(table, b) for b in table.all if _step_bytes(table, b, v) >= PAGE_BYTES}
    return machine.page_walk_cycles * machine.loads_per_cycle if sum(rows.values()) > machine.tlb_pages else 0.0


def distant_rows(table: Accesses, a: Access) -> int:
    """Return the iterations of the loops along which an access steps over a page at least."""
    return tile.iteration_count_hint(r for r in a.loops if _step_bytes(table, a, r.var) >= PAGE_BYTES)


def _step_bytes(table: Accesses, a: Access, v: str) -> int:
    return abs(table.stride(a, v) or 0) * table.types[a.buffer].dtype.bytes


def _is_deinterleaved(table: Accesses, a: Access, v: str, lanes: int) -> bool:
    """Return True if `a` is a load that is deinterleaved along `v`."""
    return not a.is_store and is_deinterleaved(table.stride(a, v) or 0, lanes)


def transpose_loops(table: Accesses, a: Access, v: str, lanes: int) -> tuple[Range, ...]:
    """Return the loop along which `a` is contiguous, if blocks of it and the strided loop `v` can be transposed.

    If that loop is too short, the loop that continues it in memory comes first, unless that is `v` itself: then whole
    vectors hold several rows.  Empty if there are no such loops.
    A loop around reductions qualifies only if one of them is a contraction: `split-epilogue` takes the rows of several one by one.
    One around a local buffer does not for a store, as the next step fills the buffer again.
    """
    step = abs(table.stride(a, v) or 0)
    if a.is_masked or step < 2 or _is_deinterleaved(table, a, v, lanes) or isinstance(a.consumer, Reduce):
        return ()
    buffers = table.local_scopes if a.is_store else {a.buffer}
    free = table.parallel_loops - {v} - frozenset().union(*(table.local_scopes.get(b, frozenset()) for b in buffers))

    def loop_with_stride(stride: Dim) -> Range | None:
        loops = (r for r in a.loops if r.var in free and table.stride(a, r.var) == stride)
        loops = (r for r in loops if table.has_constant_strides(r.var) and isinstance(table.loops[r.var][1], For))
        return next(
            (r for r in loops if not (sums := table.reductions(r.var)) or sum(map(is_contraction, sums)) == 1), None
        )

    inner = loop_with_stride(1)
    is_dense = inner is not None and is_interleaved(inner.extent, step, lanes)
    if inner is None or is_dense or dim_hint(inner.extent) >= MIN_TRANSPOSE_BLOCK:
        return () if inner is None or not holds_rows(table, inner.var, v) else (inner,)
    outer = loop_with_stride(inner.extent) if dim_hint(inner.extent) > 1 else None
    return (outer, inner) if outer and dim_hint(outer.extent * inner.extent) >= MIN_TRANSPOSE_BLOCK else ()


def holds_rows(table: Accesses, r: str, v: str) -> bool:
    """Return True unless each contraction in loop `r` loads other vectors along `v` in each iteration, which no tile of rows shares."""
    reads = [[a for a in table.loads_of(s) if table.depends_on(a, v)] for s in table.reductions(r) if is_contraction(s)]
    return all(not loads or any(not table.depends_on(a, r) for a in loads) for loads in reads)


def _accumulator_rows(table: Accesses, a: Access, v: str, lanes: int, machine: Machine) -> int:
    """Return the rows of accumulators that reuse a vector loaded by a contraction along `v`; 1 for other accesses."""
    reduced = {r.var for r in tile.stmt_ranges(a.consumer)}
    if not is_contraction(a.consumer) or v in reduced:
        return 1
    reuse_loops = [r for r in a.loops if r.var in table.parallel_loops - reduced and not table.depends_on(a, r.var)]
    rows = max(map(tile.extent_hint, reuse_loops), default=1)
    return _register_tile_rows(rows, tile.extent_hint(table.loops[v][0]), lanes, machine)


@cache
def _register_tile_rows(rows: int, columns: int, lanes: int, machine: Machine) -> int:
    """Return the rows of the register tile of a contraction with such a result."""
    return best_tiles(rows, [ContractionProblem(columns, lanes, 1, 1)], machine)[0].rows


def _lane_stride(table: Accesses, a: Access, v: str, lanes: int, packed: Collection[str]) -> int | None:
    """Return 1 if successive lanes are contiguous, 0 if all access the same element, and None otherwise."""
    step = table.stride(a, v)
    if step == 1 or (step == 0 and not (a.is_store and table.roles[a.buffer] != "local")):
        return step
    if step is None:
        return None
    if table.roles[a.buffer] == "const":
        return 1 if _is_packable(a, v, dim_hint(table.loops[v][0].extent, lanes), lanes) else None
    return 1 if a.buffer in packed and a.index.count(var(v)) == 1 else None


def _is_packable(a: Access, v: str, extent: int, lanes: int) -> bool:
    """Return True if a constant can be packed for lanes along `v`: in panels of whole vectors, or one shorter panel."""
    varying = [d for d in a.index if v in variables(d)]
    width = contiguous_width(varying[0], v, 0) if len(varying) == 1 else None
    return width is not None and (width % lanes == 0 or width == extent < lanes)


def _is_aligned(table: Accesses, a: Access, v: str, lanes: int, packed: Collection[str]) -> bool:
    """Return True if vectors along `v` start at multiples of their length; in a contraction only if they are packed."""
    if table.roles[a.buffer] == "const" or a.buffer in packed or v in table.local_scopes.get(a.buffer, ()):
        return True
    local = table.roles[a.buffer] == "local"
    if not local and is_contraction(a.consumer) and v not in {r.var for r in tile.stmt_ranges(a.consumer)}:
        return False  # each reduction step reads another line
    offset = table.offset(a)
    steps = [coefficient(offset, name) for name in variables(offset) - {v}]
    constant = offset if isinstance(offset, int) else next((c for mono, c in offset.terms if not mono), 0)
    return constant % lanes == 0 and all(s is not None and s % lanes == 0 for s in steps)


def best_disjoint_loops(body: Block, scores: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """Return the highest total score of loops of `body` of which none contains another, and these loops."""
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
