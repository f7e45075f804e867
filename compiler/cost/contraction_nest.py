"""Contractions inside lane loops: the loops that hold their accumulators, and what a tile of registers costs there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

from compiler.analysis.accesses import Access, Accesses
from compiler.cost.contraction import ContractionProblem, OperandWindow, RegisterTile
from compiler.cost.issue import operation_cost
from compiler.cost.machine import Machine
from compiler.cost.vectorization import transpose_loops
from compiler.ir.scalar import PrimitiveCall
from compiler.ir.symbolic.affine import stride
from compiler.ir.symbolic.index_expr import Dim, interval, product, variables
from compiler.ir.tile.contraction import adds_products
from compiler.ir.tile.kernel import Let, Range, Reduce, dim_hint
from compiler.ir.types import DType

DYNAMIC_EXTENT = 2520
"""Extent assumed for a dynamic loop: a multiple of 1..10, so that common tile heights leave no remainder."""


@dataclass(frozen=True)
class ContractionNest:
    """Loops and shape of a contraction: row loop (if any), loops whose results lie between its rows, and lane loop.

    `panels` are the constants that it reads.  `sums_rows` if another sum adds what the rows compute.  `whole_rows` are further
    loops of rows, which one tile covers.
    """

    name: str
    row: Range | None
    interleaved_loops: tuple[Range, ...]
    lane: Range
    problem: ContractionProblem
    panels: frozenset[str]
    enclosing_loops: tuple[Range, ...]
    sums_rows: bool = False
    whole_rows: tuple[Range, ...] = ()

    @property
    def rows(self) -> int:
        return tiling_extent(self.row.extent) * self.problem.row_unit if self.row is not None else 1

    def height(self, rows: int) -> int:
        """Return how many of `rows` a tile may have: a sum's loop consists of whole tiles."""
        return (
            rows if self.row is None or not self.sums_rows else max(n for n in range(1, rows + 1) if self.rows % n == 0)
        )

    def with_max_columns(self, columns: int) -> ContractionNest:
        """Limit the columns to the tile that another nest needs for the same lane loop."""
        return replace(self, problem=replace(self.problem, columns=min(self.problem.columns, columns)))

    def width(self, t: RegisterTile) -> int:
        """Return the columns of a register tile."""
        return t.registers // self.problem.results_per_column * self.lane.lanes


def contraction_nest(table: Accesses, s: Reduce, lane: Range, row: Range | None, machine: Machine) -> ContractionNest:
    """Return the nest of a contraction with a lane loop, and rows along another loop."""
    sums, column_sums, sums_rows = sums_around(table, s, lane, row)
    problem, interleaved_loops = problem_of_columns(table, s, lane), tuple[Range, ...]()
    problem = replace(problem, sums=sums * register_count(s.value.dtype, lane, machine), column_sums=column_sums)
    if row is not None:
        problem, interleaved_loops = with_rows(table, s, problem, lane, row, machine)
    panels = frozenset(a.buffer for a in table.loads_of(s) if table.roles[a.buffer] == "const")
    around = table.loops[s.ranges[0].var][2]
    return ContractionNest(s.name, row, interleaved_loops, lane, problem, panels, around, sums_rows)


def sums_around(table: Accesses, s: Reduce, lane: Range, row: Range | None) -> tuple[int, int, bool]:
    """Count the accumulators of each result of `s`, and those of all rows of a column.

    Sums inside the lane loop that `s` is a part of have some too.  The flag says whether one of these sums adds the rows.
    """
    around = table.loops[s.ranges[0].var][2]
    inside = around[around.index(lane) + 1 :]
    sums = list({id(t): t for r in inside if isinstance(t := table.loops[r.var][1], Reduce)}.values())
    row_sum = table.loops[row.var][1] if row is not None and row in inside else None
    if not isinstance(row_sum, Reduce):
        return len(sums) + 1, 0, False
    of_columns = sums.index(row_sum)
    return len(sums) - of_columns, of_columns, True


def problem_of_columns(table: Accesses, s: Reduce, lane: Range) -> ContractionProblem:
    """Return a contraction without rows: its columns, and how the operand along lanes lies in memory."""
    reads, step = table.loads_of(s), s.ranges[-1].var
    lane_reads = [a for a in reads if table.depends_on(a, lane.var)]
    # local buffers have one copy for each column that is held
    unpacked = any(table.roles[a.buffer] != "const" for a in lane_reads) and not table.local_bytes(lane.var)
    strides = [abs(table.stride(a, step) or 0) * table.types[a.buffer].dtype.bytes for a in lane_reads if unpacked]
    return ContractionProblem(
        tiling_extent(lane.extent, lane.lanes),
        lane.lanes,
        dim_hint(product(r.extent for r in s.ranges)),
        max(a.execution_count for a in reads),
        unpacked=unpacked,
        panel_stride=gcd(*strides),
        vector_registers=1 + any(table.stride(a, step) is None for a in lane_reads),
    )


def with_rows(
    table: Accesses, s: Reduce, problem: ContractionProblem, lane: Range, row: Range, machine: Machine
) -> tuple[ContractionProblem, tuple[Range, ...]]:
    """Return a contraction with rows along the loop `row`, and the loops whose results lie between those of neighbouring lanes."""
    reads = table.loads_of(s)
    windows = private_windows(table, [a for a in reads if table.depends_on(a, lane.var)], row, s.ranges[-1])
    lane_stride, interleaved_loops = transposed_store_strides(table, lane, row)
    problem = replace(
        problem,
        private_windows=windows,
        row_stride=row_stride_bytes(table, reads, row.var, lane),
        element_bytes=max(table.types[a.buffer].dtype.bytes for a in reads if table.depends_on(a, row.var)),
        tap_windows=() if windows else tap_windows(table, reads, row, s, machine.max_unrolled_steps),
        lane_stride=lane_stride,
        results_per_column=dim_hint(product(r.extent for r in interleaved_loops)),
        operations=step_operations(table, s, lane, row, machine),
        row_operations=TRANSFER_OPERATIONS * packed_scalars(table, s, lane),
    )
    return problem, interleaved_loops


def step_operations(table: Accesses, s: Reduce, lane: Range, row: Range, machine: Machine) -> int:
    """Return the operations that a step does for each vector of results, apart from what rows or columns share; a multiply-add is one.

    Conversions do not count: those of windows are shared by taps.
    """
    calls = (e for e in step_calls(s) if e.primitive != "cast" and {lane.var, row.var} <= table.varying_loops(e))
    own = sum(operation_cost(e.primitive, machine) * register_count(e.dtype, lane, machine) for e in calls)
    combined = operation_cost(s.op, machine) * register_count(s.value.dtype, lane, machine)
    return max(1, own if adds_products(s) else own + combined)


TRANSFER_OPERATIONS = 2
"""Vector operations that bring a general register to all lanes: a move and a broadcast."""


def packed_scalars(table: Accesses, s: Reduce, lane: Range) -> int:
    """Count the operands that a step of `s` packs from elements which lie apart, the same for all lanes."""
    return sum(e.primitive == "pack" and lane.var not in table.varying_loops(e) for e in step_calls(s))


def step_calls(s: Reduce) -> Iterator[PrimitiveCall]:
    """Yield the primitives that a step of `s` applies."""
    for value in (*(t.value for t in s.body if isinstance(t, Let)), s.value):
        yield from value.calls


def register_count(dtype: DType, lane: Range, machine: Machine) -> int:
    """Return the registers that hold a value of `dtype` for each lane."""
    return max(1, lane.lanes * dtype.bits // machine.vector_bits)


def row_stride_bytes(table: Accesses, reads: list[Access], row_var: str, lane: Range) -> int:
    """Return the bytes between rows of the row operands, their gcd if there are several; 0 if one is not affine."""
    moving = [a for a in reads if table.depends_on(a, row_var)]
    steps = [(row_stride_elements(table, a, row_var, lane) or 0) * table.types[a.buffer].dtype.bytes for a in moving]
    return gcd(*steps) if all(steps) else 0


def row_stride_elements(table: Accesses, a: Access, row_var: str, lane: Range) -> int | None:
    """Return the row stride of `a` in elements, or None if not affine; assumes that `pack` stores scratch in panels."""
    if table.roles[a.buffer] != "scratch" or not table.depends_on(a, lane.var):
        return table.stride(a, row_var)
    steps = [stride(d, row_var) for d in a.index if row_var in variables(d)]
    return steps[0] * lane.lanes if len(steps) == 1 and isinstance(steps[0], int) else None


def transposed_store_strides(table: Accesses, lane: Range, row: Range) -> tuple[int, tuple[Range, ...]]:
    """Return the lane stride in bytes of stores that are contiguous along rows, and so transposed in registers, or 0.

    The loops are those whose results lie between adjacent rows.
    """
    lane_stride, interleaved_loops = 0, tuple[Range, ...]()
    for a in (a for a in table.all if a.is_store and lane in a.loops):
        transposed_loops = transpose_loops(table, a, lane.var, lane.lanes)
        if row in transposed_loops[:1]:
            lane_stride = max(lane_stride, abs(table.stride(a, lane.var) or 0) * table.types[a.buffer].dtype.bytes)
            interleaved_loops = transposed_loops[1:]
    return lane_stride, interleaved_loops


def tap_windows(
    table: Accesses, reads: list[Access], row: Range, s: Reduce, max_steps: int
) -> tuple[OperandWindow, ...]:
    """Return the windows in which taps of a reduction that is unrolled for up to `max_steps` read the operands of rows."""
    if dim_hint(s.ranges[-1].extent) > max_steps:
        return ()
    return tuple(operand_window(table, a, row.var, s.ranges[-1]) for a in reads if table.depends_on(a, row.var))


def private_windows(table: Accesses, reads: list[Access], row: Range, last: Range) -> tuple[OperandWindow, ...]:
    """Return how each operand among `reads` that rows read privately overlaps; loads that are packed are one operand."""
    private = (a for a in reads if table.depends_on(a, row.var))
    found = dict.fromkeys((a.buffer, operand_window(table, a, row.var, last)) for a in private)
    return tuple(window for _, window in found)


def operand_window(table: Accesses, a: Access, row_var: str, last: Range) -> OperandWindow:
    """Return how reads of adjacent rows overlap along the last range of a reduction."""
    stride, dilation = table.stride(a, row_var), table.stride(a, last.var)
    unit = gcd(stride or 0, dilation or 0)
    if not stride or not dilation:
        return OperandWindow()
    return OperandWindow(stride // unit, dim_hint(last.extent), dilation // unit)


def tiling_extent(extent: Dim, unit: int = 1) -> int:
    """Return the extent for which a tile is chosen.

    For a dynamic extent assume `DYNAMIC_EXTENT` units or its upper bound, because partial tiles have code of their own.
    For one that depends on other loops assume `unit`.
    """
    bounds = interval(extent, {})
    return min(bounds[1], DYNAMIC_EXTENT * unit) if bounds and not isinstance(extent, int) else dim_hint(extent, unit)


def constraint_groups(blocks: list[ContractionNest]) -> list[list[ContractionNest]]:
    """Group contractions that need common tiles: those that share a loop of rows or of lanes, or panels of constants."""
    groups: list[list[ContractionNest]] = []
    for b in blocks:
        related = [g for g in groups if any(o.row == b.row or o.lane == b.lane or o.panels & b.panels for o in g)]
        groups = [g for g in groups if g not in related]
        groups.append([*(o for g in related for o in g), b])
    return groups
