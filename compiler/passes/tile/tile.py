"""Choose how many indices of each loop are taken at once, so that values stay in registers and latencies overlap."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from math import gcd

from compiler.analysis.accesses import Access, Accesses, is_contraction
from compiler.cost.contraction import ContractionProblem, OperandWindow, RegisterTile, best_common_width, ranked_tiles
from compiler.cost.machine import Machine
from compiler.cost.vectorization import transpose_loops
from compiler.ir.symbolic.affine import stride
from compiler.ir.symbolic.index_expr import Dim, interval, product, variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import For, Kernel, Let, Range, Reduce, Stmt, dim_hint
from compiler.ir.tile.substitution import with_unique_names
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.unroll import Unroll

MAX_ALTERNATIVES = 7
"""How many blocks of accumulators are offered beside the best."""

DYNAMIC_EXTENT = 2520
"""What 1 to 10 divide."""


@register
@dataclass(frozen=True)
class Tile(TilePass):
    """parallel %i { for %j lanes 16 { reduce %k } }  ->  parallel %i tile 8 { for %j tile 48 lanes 16 { reduce %k } }

    A contraction keeps a block of accumulators: rows of one loop times registers of the lane loop, chosen by the cost model.
    Other lane loops take `registers` registers per step.
    """

    name = "tile"
    registers: int = 4
    rows: int = 0
    columns: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir, machine = with_unique_names(ir), context.machine or Machine()
        table = context.accesses(ir)
        sizes: dict[str, int] = {}
        contractions = [s for s in tile.walk(ir.body) if isinstance(s, Reduce) and is_contraction(s)]
        blocks = [b for s in contractions for b in self.match_contraction(table, s, frozenset())]
        excluded_rows = frozenset(
            b.row for b in blocks if any(b.row in o.enclosing_loops and b.row != o.row for o in blocks)
        )
        blocks = (
            [b for s in contractions for b in self.match_contraction(table, s, excluded_rows)]
            if excluded_rows
            else blocks
        )
        self.tile_transposed_loops(table, sizes, {r for b in blocks for r in (b.row, *b.interleaved_loops)}, context)
        blocks = [b.with_max_columns(sizes[b.lane.var]) if b.lane.var in sizes else b for b in blocks]
        for family in constraint_groups(blocks):
            rows = dict.fromkeys(b.row for b in family)
            if len(rows) == 1:
                self.choose_tiles(family, sizes, machine, context)
            else:
                self.choose_common_width(family, sizes, machine, context)
        for v, (r, stmt, _) in table.loops.items():
            if r.lanes and v not in sizes:
                sizes[v] = self.lane_tile(r, stmt, machine.l2 // max(1, table.local_bytes(v)), machine.registers)
                context.propose(self, *(replace(self, registers=n) for n in (1, 2, 8)))

        def rule(r: Range, _: Stmt) -> Range:
            return r.with_(tile=sizes[r.var]) if r.var in sizes else r

        return ir.with_body(tile.map_ranges(ir.body, rule))

    def tile_transposed_loops(
        self, table: Accesses, sizes: dict[str, int], excluded_rows: Set[Range | None], context: Context
    ) -> None:
        """Blocks of loops that walk along memory where the lanes walk across it, but for `rows` of contractions: whole lines, as far as
        there are.
        """
        for a in table.all:
            lane = next((r for r in a.loops if r.lanes), None)
            transposed_loops = transpose_loops(table, a, lane.var, lane.lanes) if lane is not None else ()
            if (
                lane is None
                or not transposed_loops
                or any(r in excluded_rows or r.var in sizes or table.reductions(r.var) for r in transposed_loops)
            ):
                continue
            sizes[lane.var] = left = lane.lanes
            for r in reversed(transposed_loops):
                sizes[r.var] = max(1, min(left, tiling_extent(r.extent)))
                left //= sizes[r.var]
            whole = " x ".join(f"{sizes[r.var]} %{r.var}" for r in transposed_loops)
            context.applied(self, f"%{a.buffer}: blocks of {whole} are turned in registers")

    def lane_tile(self, r: Range, stmt: Stmt, max_buffers: int, registers: int) -> int:
        """Indices per step of a plain lane loop; fewer where much is computed on each, or kept in more than `copies` buffers."""
        heavy = isinstance(stmt, For) and any(isinstance(s, Reduce) for s in tile.walk(stmt.body))
        named = sum(isinstance(s, Let) for s in tile.stmt_body(stmt))
        count = max(1, min(2 if heavy else self.registers, max_buffers // r.lanes, registers // max(1, named)))
        extent = max(1, tiling_extent(r.extent, r.lanes * count))
        return min(r.lanes * count, -(-extent // r.lanes) * r.lanes, extent)

    def match_contraction(self, table: Accesses, s: Reduce, excluded_rows: Set[Range | None]) -> list[ContractionNest]:
        """The loops that a contraction keeps accumulators along, rows of `crowded` ones not; none where it has no lane loop
        around it or loads nothing itself.
        """
        enclosing_loops = table.loops[s.ranges[0].var][2]
        lane = next((r for r in enclosing_loops if r.lanes), None)
        reads = [a for a in table.all if a.stmt is s and not a.is_store]
        if lane is None or not reads:
            return []
        depth = product(r.extent for r in s.ranges)
        row = self.row_loop(table, reads, lane, tuple(r for r in enclosing_loops if r not in excluded_rows))
        private_reads = (
            [] if row is None else [a for a in reads if table.depends_on(a, row.var) and table.depends_on(a, lane.var)]
        )
        private_windows = tuple(
            operand_window(table, a, row.var, s.ranges[-1]) for a in private_reads if row is not None
        )
        panels = frozenset(a.buffer for a in reads if table.roles[a.buffer] == "const")
        count, columns = max(a.execution_count for a in reads), tiling_extent(lane.extent, lane.lanes)
        has_unpacked_operand = any(table.roles[a.buffer] != "const" for a in reads if table.depends_on(a, lane.var))
        unpacked = has_unpacked_operand and not table.local_bytes(
            lane.var
        )  # each column that is held multiplies its buffers
        problem, interleaved_loops = (
            ContractionProblem(columns, lane.lanes, dim_hint(depth), count, private_windows, unpacked=unpacked),
            tuple[Range, ...](),
        )
        if row is not None:
            lane_stride, interleaved_loops = transposed_store_strides(table, lane, row)
            problem = replace(
                problem,
                row_stride=row_stride_bytes(table, reads, row.var, lane),
                element_bytes=max(table.types[a.buffer].dtype.bytes for a in reads if table.depends_on(a, row.var)),
                taps_overlap=not private_windows and has_overlapping_taps(table, reads, row, s),
                lane_stride=lane_stride,
                results_per_column=dim_hint(product(r.extent for r in interleaved_loops)),
            )
        return [ContractionNest(s.name, row, interleaved_loops, lane, problem, panels, enclosing_loops)]

    def choose_tiles(
        self, blocks: list[ContractionNest], sizes: dict[str, int], machine: Machine, context: Context
    ) -> None:
        """Rows and registers for the contractions along one row loop: the rows must serve them all."""
        chosen, *others = ranked_tiles(blocks[0].rows, [b.problem for b in blocks], machine)
        context.propose(self, *(self.with_tiles(blocks, o) for o in others[:MAX_ALTERNATIVES]))
        self.record_tiles(blocks, chosen, sizes, context)

    def choose_common_width(
        self, blocks: list[ContractionNest], sizes: dict[str, int], machine: Machine, context: Context
    ) -> None:
        """Registers for contractions that walk the same panels, and rows for each of their row loops."""
        self.record_tiles(blocks, best_common_width([(b.rows, b.problem) for b in blocks], machine)[1], sizes, context)

    def record_tiles(
        self, blocks: list[ContractionNest], tiles: list[RegisterTile], sizes: dict[str, int], context: Context
    ) -> None:
        """Note what was chosen for each of the blocks."""
        for b, choice in zip(blocks, tiles, strict=True):
            height = min(self.rows or choice.rows, b.rows)
            width = min(self.columns or b.width(choice), b.problem.columns)
            if b.row is not None:
                sizes[b.row.var] = height
            sizes.update({r.var: dim_hint(r.extent) for r in b.interleaved_loops})
            sizes[b.lane.var] = width
            interleaved_text = f" x {b.problem.results_per_column}" if b.interleaved_loops else ""
            context.applied(
                self, f"{height} rows{interleaved_text} x {width} columns in {b.lane.lanes} lanes for %{b.name}"
            )

    def with_tiles(self, blocks: list[ContractionNest], tiles: list[RegisterTile]) -> Tile:
        """The pass with these blocks, or with their height where the contractions differ in their widths."""
        widths = {min(b.width(t), b.problem.columns) for t, b in zip(tiles, blocks, strict=True)}
        return replace(self, rows=tiles[0].rows, columns=widths.pop() if len(widths) == 1 else 0)

    @staticmethod
    def row_loop(table: Accesses, reads: list[Access], lane: Range, enclosing_loops: tuple[Range, ...]) -> Range | None:
        """The loop along which what varies across lanes is used again: the longest that most of those loads do not follow."""
        lane_reads = [a for a in reads if table.depends_on(a, lane.var)]

        def reuse_count(r: Range) -> int:
            return sum(not table.depends_on(a, r.var) for a in lane_reads)

        reuse_loops = [r for r in enclosing_loops if r is not lane and r.extent not in (0, 1) and reuse_count(r)]
        used = [r for r in reuse_loops if any(table.depends_on(a, r.var) for a in reads) and table.is_parallel(r.var)]
        return max(used, key=lambda r: (reuse_count(r), tile.extent_hint(r), enclosing_loops.index(r)), default=None)


def row_stride_bytes(table: Accesses, reads: list[Access], row_var: str, lane: Range) -> int:
    """Bytes between the rows of what each row reads for itself, of several operands a common divisor; 0 where one is irregular."""
    moving = [a for a in reads if table.depends_on(a, row_var)]
    steps = [(row_stride_elements(table, a, row_var, lane) or 0) * table.types[a.buffer].dtype.bytes for a in moving]
    return gcd(*steps) if all(steps) else 0


def row_stride_elements(table: Accesses, a: Access, row_var: str, lane: Range) -> int | None:
    """Elements between the rows that `a` reads; None where that is irregular.  Lanes of a buffer for work will lie beside each other (`pack`)."""
    if table.roles[a.buffer] != "scratch" or not table.depends_on(a, lane.var):
        return table.stride(a, row_var)
    steps = [stride(d, row_var) for d in a.index if row_var in variables(d)]
    return steps[0] * lane.lanes if len(steps) == 1 and isinstance(steps[0], int) else None


def transposed_store_strides(table: Accesses, lane: Range, row: Range) -> tuple[int, tuple[Range, ...]]:
    """Bytes between results of neighbouring lanes that are turned because those of neighbouring rows lie side by side, and the loop
    whose results lie in between; 0 and none where none are turned.
    """
    found, interleaved_loops = 0, tuple[Range, ...]()
    for a in table.all:
        if (
            a.is_store
            and lane in a.loops
            and row in (transposed_loops := transpose_loops(table, a, lane.var, lane.lanes))[:1]
        ):
            found = max(found, abs(table.stride(a, lane.var) or 0) * table.types[a.buffer].dtype.bytes)
            interleaved_loops = transposed_loops[1:]
    return found, interleaved_loops


def has_overlapping_taps(table: Accesses, reads: list[Access], row: Range, s: Reduce) -> bool:
    """Whether taps of a reduction that will be written out meet places of other rows."""
    if dim_hint(s.ranges[-1].extent) > Unroll.max_steps:
        return False
    found = (operand_window(table, a, row.var, s.ranges[-1]) for a in reads if table.depends_on(a, row.var))
    return any(w.positions(2) < 2 * w.taps for w in found)


def operand_window(table: Accesses, a: Access, row_var: str, last: Range) -> OperandWindow:
    """How the places that rows read overlap, while the last range of a reduction runs."""
    stride, dilation = table.stride(a, row_var), table.stride(a, last.var)
    unit = gcd(stride or 0, dilation or 0)
    return (
        OperandWindow(stride // unit, dim_hint(last.extent), dilation // unit)
        if stride and dilation
        else OperandWindow()
    )


@dataclass(frozen=True)
class ContractionNest:
    """One contraction `name`: its row loop, if any, the one whose results lie between its rows, its lane loop, its shape, the constants
    that it walks, and all loops around it.
    """

    name: str
    row: Range | None
    interleaved_loops: tuple[Range, ...]
    lane: Range
    problem: ContractionProblem
    panels: frozenset[str]
    enclosing_loops: tuple[Range, ...]

    @property
    def rows(self) -> int:
        return tiling_extent(self.row.extent) if self.row is not None else 1

    def with_max_columns(self, columns: int) -> ContractionNest:
        """The block, where other nests in its lane loop take so many columns at a time."""
        return replace(self, problem=replace(self.problem, columns=min(self.problem.columns, columns)))

    def width(self, t: RegisterTile) -> int:
        """Columns of a block with as many registers."""
        return t.registers // self.problem.results_per_column * self.lane.lanes


def tiling_extent(extent: Dim, unit: int = 1) -> int:
    """For how many indices a tile is chosen: where that is open for many, of which every height divides the rows, because what is left
    of fewer has code of its own.  It is `unit` where the loop follows others.
    """
    most = interval(extent, {})
    return min(most[1], DYNAMIC_EXTENT * unit) if most and not isinstance(extent, int) else dim_hint(extent, unit)


def constraint_groups(blocks: list[ContractionNest]) -> list[list[ContractionNest]]:
    """Contractions that have to agree: those that share a row loop or panels of constants."""
    found: list[list[ContractionNest]] = []
    for b in blocks:
        related = [f for f in found if any(o.row == b.row or o.panels & b.panels for o in f)]
        found = [f for f in found if f not in related]
        found.append([*(o for f in related for o in f), b])
    return found
