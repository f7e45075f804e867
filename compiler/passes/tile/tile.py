"""Register tiling: choose loop tiles so that values stay in registers and latencies overlap."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import product as product_of
from math import gcd, prod

from compiler.analysis.accesses import Access, Accesses, buffer_bytes
from compiler.analysis.row_walk import walked_bytes
from compiler.cost.code_size import stmt_size
from compiler.cost.contraction import (
    RegisterTile,
    best_common_width,
    best_tiles,
    cycles_per_row,
    ranked_tiles,
)
from compiler.cost.contraction_nest import (
    ContractionNest,
    constraint_groups,
    contraction_nest,
    row_stride_bytes,
    tiling_extent,
)
from compiler.cost.line_traffic import PAGE_BYTES
from compiler.cost.machine import CACHE_LINE_BYTES, Machine
from compiler.cost.vectorization import transpose_loops
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import is_contraction
from compiler.ir.tile.kernel import For, Kernel, Let, Range, Reduce, Stmt, dim_hint, is_parallel_loop
from compiler.ir.tile.substitution import with_unique_names
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.tile.unroll import vector_count

MAX_ALTERNATIVES = 7
"""Register tiles proposed to the autotuner besides the best one."""

CHAIN_STEPS = 4
"""Fewest elements that a partial result of a reduction combines."""


@register
@dataclass(frozen=True)
class Tile(TilePass):
    """Tile the loops around contractions, and lane loops, for registers.

    parallel %i { for %j lanes 16 { reduce %k } }  ->  parallel %i tile 8 { for %j tile 48 lanes 16 { reduce %k } }

    A contraction holds a tile of accumulators: rows of one loop times vectors of the lane loop.  The cost model chooses
    it, unless `rows` or `columns` are given.  Other lane loops take up to `registers` vectors per
    step, whose sums hide each other's latency.
    """

    name = "tile"
    registers: int = from_machine("lane_loop_vectors")
    max_ops: int = from_machine("max_code_ops")
    rows: int = 0
    columns: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        ir, machine = with_unique_names(ir), context.machine
        table = context.accesses(ir)
        sizes: dict[str, int] = {}
        contractions = [s for s in tile.walk(ir.body) if is_contraction(s)]
        blocks = [b for s in contractions for b in self.match_contraction(table, s, frozenset(), machine)]
        excluded_rows = {b.row for b in blocks if any(b.row in o.enclosing_loops and b.row != o.row for o in blocks)}
        if excluded_rows:
            blocks = [b for s in contractions for b in self.match_contraction(table, s, excluded_rows, machine)]
        blocks = [b for b in blocks if b.row is not None or not self.holds_row(table, b.lane, machine)]
        self.tile_transposed_loops(
            table, sizes, {r for b in blocks for r in (b.row, *b.whole_rows, *b.interleaved_loops)}, context
        )
        blocks = [b.with_max_columns(sizes[b.lane.var]) if b.lane.var in sizes else b for b in blocks]
        for group in constraint_groups(blocks):
            self.choose_tiles(group, sizes, machine, context)
        for s in contractions:
            self.tile_block_of_sums(table, s, sizes, context)
            self.tile_shared_rows(table, s, sizes, context)
        for v, (r, stmt, around) in table.loops.items():
            if r.lanes and v not in sizes:
                threads = machine.threads if is_shared_alone(table, r, machine) else 1
                max_buffers = machine.l2 // max(1, table.local_bytes(v))
                copies = prod(sizes.get(o.var, 1) for o in around) if isinstance(stmt, For) else 1
                size = self.lane_tile(r, stmt, max_buffers, machine.registers, threads, copies)
                if copies == 1 and self.holds_row(table, r, machine):
                    size = dim_hint(r.extent)
                if context.may_apply(self, f"%{v} in tiles of {size}", remark=False):
                    sizes[v] = size
                context.propose(self, *(replace(self, registers=n) for n in (1, 2, 8)))
        for stmt in tile.walk(ir.body):
            if isinstance(stmt, Reduce) and not is_contraction(stmt):
                self.tile_chain(stmt, table.loops[stmt.ranges[-1].var][2], sizes, context)

        def rule(r: Range, _: Stmt) -> Range:
            return r.with_(tile=sizes[r.var]) if r.var in sizes else r

        return ir.with_body(tile.map_ranges(ir.body, rule))

    def tile_transposed_loops(
        self, table: Accesses, sizes: dict[str, int], excluded_rows: Set[Range | None], context: Context
    ) -> None:
        """Tile loops that are contiguous where the lanes are strided, so that blocks are transposed in registers.

        Stores choose first: a line that is stored in pieces costs more than one that is loaded in pieces.
        """
        for a in sorted(table.all, key=lambda a: not a.is_store):
            lane = next((r for r in a.loops if r.lanes), None)
            transposed_loops = transpose_loops(table, a, lane.var, lane.lanes) if lane is not None else ()
            if lane is None or not transposed_loops:
                continue
            if any(r in excluded_rows or r.var in sizes or table.reductions(r.var) for r in transposed_loops):
                continue
            chosen, remaining = {lane.var: lane.lanes}, lane.lanes
            for r in reversed(transposed_loops):
                chosen[r.var] = max(1, min(remaining, tiling_extent(r.extent)))
                remaining //= chosen[r.var]
            block = " x ".join(f"{chosen[r.var]} %{r.var}" for r in transposed_loops)
            if context.may_apply(self, f"%{a.buffer}: {block} blocks transposed in registers"):
                sizes |= chosen

    def tile_shared_rows(self, table: Accesses, s: Reduce, sizes: dict[str, int], context: Context) -> None:
        """Tile a loop whose iterations add over lanes and share an operand that exceeds the first-level cache.

        parallel %h in 0..3 { for %j { reduce %k lanes 16 { q[%h, %k] * keys[%j, %k] } } }  ->  parallel %h in 0..3 tile 3 ...
        """
        lane, l1 = s.ranges[-1], context.machine.l1
        if not lane.lanes:
            return

        def shared_bytes(r: Range) -> int:
            inside = (r, *table.loops[r.var][2])
            shared = [a for a in table.loads_of(s) if not table.depends_on(a, r.var)]
            counts = (
                prod(tile.extent_hint(x) for x in a.loops if x not in inside and table.depends_on(a, x.var))
                for a in shared
            )
            return max((n * table.types[a.buffer].dtype.bytes for n, a in zip(counts, shared, strict=True)), default=0)

        around = [
            r
            for r in table.loops[lane.var][2]
            if table.is_parallel(r.var) and r.var not in sizes and isinstance(r.extent, int)
        ]
        row = max(around, key=shared_bytes, default=None)
        if row is None or shared_bytes(row) <= l1:
            return
        most = min(self.registers, l1 // max(1, table.local_bytes(row.var)))
        rows = max((n for n in range(2, most + 1) if row.extent % n == 0), default=1)
        if rows > 1 and context.may_apply(self, f"{rows} rows of %{row.var} share what %{s.name} reads"):
            sizes[row.var] = rows

    def tile_block_of_sums(self, table: Accesses, s: Reduce, sizes: dict[str, int], context: Context) -> None:
        """Tile the two loops around a sum over lanes where each rereads an operand that the other one walks.

        for %j { for %h { reduce %k lanes 16 { keys[%j, %k] * q[%h, %k] } } }  ->  for %j tile 4 { for %h tile 3 { ...
        """
        lane = s.ranges[-1]
        loops = table.loops[lane.var][2][-2:]
        if not lane.lanes or len(loops) < 2 or len(tile.stmt_body(table.loops[loops[0].var][1])) > 1:
            return
        if any(r.var in sizes or not table.is_parallel(r.var) or not isinstance(r.extent, int) for r in loops):
            return
        walked = [{r for r in loops if table.depends_on(a, r.var)} for a in table.loads_of(s)]
        if not all({r} in walked for r in loops):
            return
        most_unordered = [unordered_rows(table, s, r, context) for r in loops]
        most = [min(self.registers, dim_hint(r.extent), n) for r, n in zip(loops, most_unordered, strict=True)]
        block = self.best_block_of_sums(loops, most, context.machine)
        is_shared = max(block) > 1 and all(b > 1 or n == 1 for b, n in zip(block, most_unordered, strict=True))
        (rows, columns), (outer, inner) = block, (r.var for r in loops)
        message = f"{rows} %{outer} x {columns} %{inner} sums of %{s.name} share what they read"
        if is_shared and context.may_apply(self, message):
            # sums of a block hide each other's latency, few of them with several vectors of each
            chains = int(context.machine.fma_latency * context.machine.fma_per_cycle) // (rows * columns)
            vectors = max(1, min(chains, self.registers, dim_hint(lane.extent) // lane.lanes))
            sizes |= {outer: rows, inner: columns, lane.var: vectors * lane.lanes}

    @staticmethod
    def best_block_of_sums(loops: tuple[Range, ...], most: Sequence[int], machine: Machine) -> tuple[int, int]:
        """Return the block of sums over two loops, at most `most` of each, with the fewest loads; its shorter side stays in registers."""
        rows, columns = (dim_hint(r.extent) for r in loops)
        sides = (range(1, max(1, n) + 1) for n in most)
        fitting = [(m, n) for m, n in product_of(*sides) if m * n + min(m, n) < machine.registers]
        return min(fitting, key=lambda b: (-(-rows // b[0]) * -(-columns // b[1]) * sum(b), -prod(b)), default=(1, 1))

    def lane_tile(self, r: Range, stmt: Stmt, max_buffers: int, registers: int, threads: int, copies: int) -> int:
        """Return the tile of a lane loop without contraction; bindings and local buffers limit it.

        Each of `threads` that share a loop around reductions has a tile, where there are vectors for it.  Tiles around
        the loop make `copies` of it, which hide each other's latency as well.
        """
        has_reduction = isinstance(stmt, For) and any(isinstance(s, Reduce) for s in tile.walk(stmt.body))
        bindings = sum(isinstance(s, Let) for s in tile.stmt_body(stmt))
        share = -(-tile.extent_hint(r) // r.lanes) // threads if has_reduction else self.registers
        chains = -(-self.registers // copies)
        count = max(1, min(chains, share, max_buffers // r.lanes, registers // max(1, bindings)))
        extent = max(1, tiling_extent(r.extent, r.lanes * count))
        return min(r.lanes * count, -(-extent // r.lanes) * r.lanes, extent)

    def tile_chain(self, s: Reduce, around: Sequence[Range], sizes: dict[str, int], context: Context) -> None:
        """Tile a reduction inside a loop of lanes with few vectors, so that partial results hide each other's latency.

        for %j in 0..4 lanes 4 { reduce max %k in 0..1000 { yield %x[%k, %j] } }  ->  ... { reduce max %k in 0..1000 tile 4 { ...

        Each of them combines at least `CHAIN_STEPS` elements.
        """
        r = s.ranges[-1]
        if r.lanes or r.var in sizes or not isinstance(r.extent, int) or not any(o.lanes for o in around):
            return
        vectors = vector_count([o.with_(tile=sizes.get(o.var, o.tile)) for o in around])
        chains = min(self.registers // max(1, vectors), r.extent // CHAIN_STEPS)
        is_simple = not any(tile.stmt_ranges(t) for t in tile.walk(s.body))
        if chains > 1 and is_simple and context.may_apply(self, f"{chains} partial results of %{s.name}"):
            sizes[r.var] = chains

    def holds_row(self, table: Accesses, r: Range, machine: Machine) -> bool:
        """Return True if a tile should hold a whole row, because loops inside walk over more rows than the first-level cache holds.

        Rows are then read as they lie in memory, which CPUs foresee, rather than in columns.  Where a row exceeds the registers,
        its rows have to exceed the second-level cache: stored accumulators take less time than memory.
        """
        if not isinstance(r.extent, int) or table.local_bytes(r.var) or is_shared_alone(table, r, machine):
            return False
        stmt, vectors = table.loops[r.var][1], -(-r.extent // r.lanes)
        cache = machine.l1 if vectors <= machine.registers else machine.l2
        return stmt_size(stmt) * vectors <= self.max_ops and walked_bytes(table, r, stmt) > cache

    def match_contraction(
        self, table: Accesses, s: Reduce, excluded_rows: Set[Range | None], machine: Machine
    ) -> list[ContractionNest]:
        """Return the loops that hold accumulators of a contraction, with no row loop from `excluded_rows`.

        Return [] if no lane loop is around it, if it loads nothing itself, or if it adds the sums of another one.
        """
        enclosing_loops = table.loops[s.ranges[0].var][2]
        lane = next((r for r in enclosing_loops if r.lanes), None)
        reads = table.loads_of(s)
        if lane is None or not reads or any(reads_lanes(table, t, lane) for t in tile.walk(s.body)):
            return []
        row = self.row_loop(table, reads, lane, tuple(r for r in enclosing_loops if r not in excluded_rows))
        nest = contraction_nest(table, s, lane, row, machine)
        while (wider := self.with_outer_rows(table, reads, nest, machine)) is not None:
            nest = wider
        return [nest]

    def with_outer_rows(
        self, table: Accesses, reads: list[Access], nest: ContractionNest, machine: Machine
    ) -> ContractionNest | None:
        """Return `nest` with rows of another loop, and its row loop tiled whole, if that takes fewer cycles; else None.

        parallel %g in 0..2 { parallel %h in 0..4 { for %j lanes 16 { reduce %k { w[%g, %h, %k] * x[%k, %j] } } } }
        ->  parallel %g tile 2 { parallel %h tile 4 { for %j tile 32 lanes 16 { ...
        """
        row, problem = nest.row, nest.problem
        if (
            row is None
            or not isinstance(row.extent, int)
            or problem.private_windows
            or problem.taps_overlap(machine.registers)
        ):
            return None
        if nest.sums_rows or best_tiles(nest.rows, [problem], machine)[0].rows < nest.rows:
            return None
        inside = (row, *nest.whole_rows, *nest.interleaved_loops)
        loops_around = (r for r in nest.enclosing_loops if r not in inside and isinstance(r.extent, int))
        others = tuple(r for r in loops_around if table.is_parallel(r.var))
        outer = self.row_loop(table, reads, nest.lane, others)
        loops = (outer, *inside) if outer is not None else ()
        if outer is None or any(table.local_bytes(r.var) or len(contractions_in(table, r)) > 1 for r in loops):
            return None
        strides = (row_stride_bytes(table, reads, r.var, nest.lane) for r in (outer, row))
        both = replace(problem, row_unit=nest.rows, row_stride=gcd(*strides))
        wider = replace(nest, row=outer, whole_rows=(row, *nest.whole_rows), problem=both)
        pays = cycles_per_row(wider.rows, both, machine) < cycles_per_row(nest.rows, problem, machine)
        return wider if pays else None

    def choose_tiles(
        self, blocks: list[ContractionNest], sizes: dict[str, int], machine: Machine, context: Context
    ) -> None:
        """Choose the vectors of contractions that need common ones, and the rows of each row loop; record the tiles in `sizes`."""
        if len({b.row for b in blocks}) == 1:
            tiles, *others = ranked_tiles(blocks[0].rows, [b.problem for b in blocks], machine)
            context.propose(self, *(self.with_tiles(blocks, o) for o in others[:MAX_ALTERNATIVES]))
        else:
            tiles = best_common_width([(b.rows, b.problem) for b in blocks], machine)[1]
        for k, (b, choice) in enumerate(zip(blocks, tiles, strict=True)):
            height = b.height(min(self.rows or choice.rows, b.rows))
            width = min(self.columns or b.width(choice), b.problem.columns)
            rows = f"{height} rows" + (f" x {b.problem.results_per_column}" if b.interleaved_loops else "")
            message = f"{rows} x {width} columns in {b.lane.lanes} lanes for %{b.name}"
            if k > 0:
                context.also_applied(self, message)
            elif not context.may_apply(self, message):
                return
            if b.row is not None:
                sizes[b.row.var] = max(1, height // b.problem.row_unit)
            sizes.update({r.var: dim_hint(r.extent) for r in (*b.whole_rows, *b.interleaved_loops)})
            sizes[b.lane.var] = width

    def with_tiles(self, blocks: list[ContractionNest], tiles: list[RegisterTile]) -> Tile:
        """Return the pass with these tiles as options, without columns if the contractions differ in them."""
        widths = {min(b.width(t), b.problem.columns) for t, b in zip(tiles, blocks, strict=True)}
        return replace(self, rows=tiles[0].rows, columns=widths.pop() if len(widths) == 1 else 0)

    @staticmethod
    def row_loop(table: Accesses, reads: list[Access], lane: Range, enclosing_loops: tuple[Range, ...]) -> Range | None:
        """Return the longest loop along which most loads that vary across lanes are reused, or None.

        It is parallel, or adds a fixed number of terms inside the lane loop.
        """
        lane_reads = [a for a in reads if table.depends_on(a, lane.var)]

        def reuse_count(r: Range) -> int:
            return sum(not table.depends_on(a, r.var) for a in lane_reads)

        reuse_loops = [r for r in enclosing_loops if r is not lane and r.extent not in (0, 1) and reuse_count(r)]
        tileable = [r for r in reuse_loops if table.is_parallel(r.var) or is_static_sum(table, r, lane)]
        used = [r for r in tileable if any(table.depends_on(a, r.var) for a in reads)]
        return max(used, key=lambda r: (reuse_count(r), tile.extent_hint(r), enclosing_loops.index(r)), default=None)


def unordered_rows(table: Accesses, s: Reduce, r: Range, context: Context) -> int:
    """Return how many rows, which loop `r` selects, a step of a sum over lanes may read in any order.

    CPUs foresee lines of memory that are read one after the other.  Long rows are read so each by itself, short ones behind each
    other, but compilers mix the loads of a step.
    """
    machine, lane, distant = context.machine, s.ranges[-1], context.distant_params
    moving = [a for a in table.loads_of(s) if table.depends_on(a, r.var) and table.stride(a, lane.var) == 1]
    far = (a for a in moving if buffer_bytes(table, a) > (machine.l1 if a.buffer in distant else machine.l2))
    lengths = [dim_hint(lane.extent) * table.types[a.buffer].dtype.bytes for a in far]
    short = [n for n in lengths if n <= PAGE_BYTES]
    return max(1, machine.unordered_lines * CACHE_LINE_BYTES // max(short)) if short else machine.registers


def is_shared_alone(table: Accesses, r: Range, machine: Machine) -> bool:
    """Return True if threads have to share loop `r`, because parallel loops around it have too few iterations."""
    shared = [o for o in (r, *table.loops[r.var][2]) if is_parallel_loop(table.loops[o.var][1])]
    return r in shared and prod(map(tile.extent_hint, shared)) < machine.threads * tile.extent_hint(r)


def is_static_sum(table: Accesses, r: Range, lane: Range) -> bool:
    """Return True if a loop inside the lane loop adds a fixed number of terms, which a tile computes together."""
    _, stmt, around = table.loops[r.var]
    return isinstance(stmt, Reduce) and isinstance(r.extent, int) and lane in around


def contractions_in(table: Accesses, r: Range) -> list[Stmt]:
    """Return the contractions inside loop `r`."""
    return [s for s in tile.walk(tile.stmt_body(table.loops[r.var][1])) if is_contraction(s)]


def reads_lanes(table: Accesses, s: Stmt, lane: Range) -> bool:
    """Return True if `s` is a contraction that loads other elements in each lane."""
    return is_contraction(s) and any(table.depends_on(a, lane.var) for a in table.loads_of(s))
