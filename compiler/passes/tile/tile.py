"""Choose how many indices of each loop are taken at once, so that values stay in registers and latencies overlap."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from math import gcd

from compiler.ir import tile
from compiler.ir.index import Dim, interval, product, variables
from compiler.ir.linear import step
from compiler.ir.tile import For, Kernel, Let, Range, Reduce, Stmt, known
from compiler.passes.access import Access, Accesses, contraction
from compiler.passes.base import Context, TilePass, register
from compiler.passes.lanes import turned_along
from compiler.passes.rename import with_unique_names
from compiler.passes.tile.unroll import Unroll
from compiler.perf.contraction import RegisterTile, Shape, Window, equally_wide, ranked_tiles
from compiler.perf.machine import Machine

RIVALS = 7
"""How many blocks of accumulators are offered beside the best."""

DIVIDED = 2520
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
        sums = [s for s in tile.walk(ir.body) if isinstance(s, Reduce) and contraction(s)]
        blocks = [b for s in sums for b in self.block(table, s, frozenset())]
        crowded = frozenset(b.row for b in blocks if any(b.row in o.around and b.row != o.row for o in blocks))
        blocks = [b for s in sums for b in self.block(table, s, crowded)] if crowded else blocks
        self.turn(table, sizes, {r for b in blocks for r in (b.row, *b.beside)}, context)
        blocks = [b.no_wider_than(sizes[b.lane.var]) if b.lane.var in sizes else b for b in blocks]
        for family in families(blocks):
            rows = dict.fromkeys(b.row for b in family)
            if len(rows) == 1:
                self.choose(family, sizes, machine, context)
            else:
                self.choose_equal(family, sizes, machine, context)
        for v, (r, stmt, _) in table.loops.items():
            if r.lanes and v not in sizes:
                sizes[v] = self.width(r, stmt, machine.l2 // max(1, table.held(v)), machine.registers)
                context.offer(self, *(replace(self, registers=n) for n in (1, 2, 8)))

        def rule(r: Range, _: Stmt) -> Range:
            return r.with_(tile=sizes[r.var]) if r.var in sizes else r

        return ir.with_body(tile.map_ranges(ir.body, rule))

    def turn(self, table: Accesses, sizes: dict[str, int], rows: Set[Range | None], context: Context) -> None:
        """Blocks of loops that walk along memory where the lanes walk across it, but for `rows` of contractions: whole lines, as far as
        there are.
        """
        for a in table.all:
            lane = next((r for r in a.loops if r.lanes), None)
            along = turned_along(table, a, lane.var, lane.lanes) if lane is not None else ()
            if lane is None or not along or any(r in rows or r.var in sizes or table.sums(r.var) for r in along):
                continue
            sizes[lane.var] = left = lane.lanes
            for r in reversed(along):
                sizes[r.var] = max(1, min(left, many(r.extent)))
                left //= sizes[r.var]
            whole = " x ".join(f"{sizes[r.var]} %{r.var}" for r in along)
            context.applied(self, f"%{a.buffer}: blocks of {whole} are turned in registers")

    def width(self, r: Range, stmt: Stmt, copies: int, registers: int) -> int:
        """Indices per step of a plain lane loop; fewer where much is computed on each, or kept in more than `copies` buffers."""
        heavy = isinstance(stmt, For) and any(isinstance(s, Reduce) for s in tile.walk(stmt.body))
        named = sum(isinstance(s, Let) for s in tile.blocks(stmt))
        count = max(1, min(2 if heavy else self.registers, copies // r.lanes, registers // max(1, named)))
        extent = max(1, many(r.extent, r.lanes * count))
        return min(r.lanes * count, -(-extent // r.lanes) * r.lanes, extent)

    def block(self, table: Accesses, s: Reduce, crowded: Set[Range | None]) -> list[Block]:
        """The loops that a contraction keeps accumulators along, rows of `crowded` ones not; none where it has no lane loop
        around it or loads nothing itself.
        """
        around = table.loops[s.ranges[0].var][2]
        lane = next((r for r in around if r.lanes), None)
        reads = [a for a in table.all if a.stmt is s and not a.is_store]
        if lane is None or not reads:
            return []
        depth = product(r.extent for r in s.ranges)
        row = self.row_loop(table, reads, lane, tuple(r for r in around if r not in crowded))
        moving = [] if row is None else [a for a in reads if table.follows(a, row.var) and table.follows(a, lane.var)]
        own = tuple(window(table, a, row.var, s.ranges[-1]) for a in moving if row is not None)
        panels = frozenset(a.buffer for a in reads if table.roles[a.buffer] == "const")
        count, columns = max(a.count for a in reads), many(lane.extent, lane.lanes)
        loose = any(table.roles[a.buffer] != "const" for a in reads if table.follows(a, lane.var))
        whole = loose and not table.held(lane.var)  # each column that is held multiplies its buffers
        shape, beside = Shape(columns, lane.lanes, known(depth), count, own, whole=whole), tuple[Range, ...]()
        if row is not None:
            far, beside = across(table, lane, row)
            shape = replace(
                shape,
                apart=rows_apart(table, reads, row.var, lane),
                element=max(table.types[a.buffer].dtype.bytes for a in reads if table.follows(a, row.var)),
                overlapping=not own and overlapping(table, reads, row, s),
                across=far,
                beside=known(product(r.extent for r in beside)),
            )
        return [Block(s.name, row, beside, lane, shape, panels, around)]

    def choose(self, blocks: list[Block], sizes: dict[str, int], machine: Machine, context: Context) -> None:
        """Rows and registers for the contractions along one row loop: the rows must serve them all."""
        chosen, *others = ranked_tiles(blocks[0].rows, [b.shape for b in blocks], machine)
        context.offer(self, *(self.fixed(blocks, o) for o in others[:RIVALS]))
        self.take(blocks, chosen, sizes, context)

    def choose_equal(self, blocks: list[Block], sizes: dict[str, int], machine: Machine, context: Context) -> None:
        """Registers for contractions that walk the same panels, and rows for each of their row loops."""
        self.take(blocks, equally_wide([(b.rows, b.shape) for b in blocks], machine)[1], sizes, context)

    def take(self, blocks: list[Block], chosen: list[RegisterTile], sizes: dict[str, int], context: Context) -> None:
        """Note what was chosen for each of the blocks."""
        for b, choice in zip(blocks, chosen, strict=True):
            height = min(self.rows or choice.rows, b.rows)
            width = min(self.columns or b.width(choice), b.shape.columns)
            if b.row is not None:
                sizes[b.row.var] = height
            sizes.update({r.var: known(r.extent) for r in b.beside})
            sizes[b.lane.var] = width
            twice = f" x {b.shape.beside}" if b.beside else ""
            context.applied(self, f"{height} rows{twice} x {width} columns in {b.lane.lanes} lanes for %{b.name}")

    def fixed(self, blocks: list[Block], tiles: list[RegisterTile]) -> Tile:
        """The pass with these blocks, or with their height where the contractions differ in their widths."""
        widths = {min(b.width(t), b.shape.columns) for t, b in zip(tiles, blocks, strict=True)}
        return replace(self, rows=tiles[0].rows, columns=widths.pop() if len(widths) == 1 else 0)

    @staticmethod
    def row_loop(table: Accesses, reads: list[Access], lane: Range, around: tuple[Range, ...]) -> Range | None:
        """The loop along which what varies across lanes is used again: the longest that most of those loads do not follow."""
        moving = [a for a in reads if table.follows(a, lane.var)]

        def again(r: Range) -> int:
            return sum(not table.follows(a, r.var) for a in moving)

        free = [r for r in around if r is not lane and r.extent not in (0, 1) and again(r)]
        used = [r for r in free if any(table.follows(a, r.var) for a in reads) and table.independent(r.var)]
        return max(used, key=lambda r: (again(r), tile.known_extent(r), around.index(r)), default=None)


def rows_apart(table: Accesses, reads: list[Access], row: str, lane: Range) -> int:
    """Bytes between the rows of what each row reads for itself, of several operands a common divisor; 0 where one is irregular."""
    moving = [a for a in reads if table.follows(a, row)]
    steps = [(row_step(table, a, row, lane) or 0) * table.types[a.buffer].dtype.bytes for a in moving]
    return gcd(*steps) if all(steps) else 0


def row_step(table: Accesses, a: Access, row: str, lane: Range) -> int | None:
    """Elements between the rows that `a` reads; None where that is irregular.  Lanes of a buffer for work will lie beside each other (`pack`)."""
    if table.roles[a.buffer] != "work" or not table.follows(a, lane.var):
        return table.step(a, row)
    steps = [step(d, row) for d in a.index if row in variables(d)]
    return steps[0] * lane.lanes if len(steps) == 1 and isinstance(steps[0], int) else None


def across(table: Accesses, lane: Range, row: Range) -> tuple[int, tuple[Range, ...]]:
    """Bytes between results of neighbouring lanes that are turned because those of neighbouring rows lie side by side, and the loop
    whose results lie in between; 0 and none where none are turned.
    """
    found, beside = 0, tuple[Range, ...]()
    for a in table.all:
        if a.is_store and lane in a.loops and row in (along := turned_along(table, a, lane.var, lane.lanes))[:1]:
            found = max(found, abs(table.step(a, lane.var) or 0) * table.types[a.buffer].dtype.bytes)
            beside = along[1:]
    return found, beside


def overlapping(table: Accesses, reads: list[Access], row: Range, s: Reduce) -> bool:
    """Whether taps of a reduction that will be written out meet places of other rows."""
    if known(s.ranges[-1].extent) > Unroll.steps:
        return False
    found = (window(table, a, row.var, s.ranges[-1]) for a in reads if table.follows(a, row.var))
    return any(w.places(2) < 2 * w.taps for w in found)


def window(table: Accesses, a: Access, row: str, last: Range) -> Window:
    """How the places that rows read overlap, while the last range of a reduction runs."""
    stride, dilation = table.step(a, row), table.step(a, last.var)
    unit = gcd(stride or 0, dilation or 0)
    return Window(stride // unit, known(last.extent), dilation // unit) if stride and dilation else Window()


@dataclass(frozen=True)
class Block:
    """One contraction `name`: its row loop, if any, the one whose results lie between its rows, its lane loop, its shape, the constants
    that it walks, and all loops around it.
    """

    name: str
    row: Range | None
    beside: tuple[Range, ...]
    lane: Range
    shape: Shape
    panels: frozenset[str]
    around: tuple[Range, ...]

    @property
    def rows(self) -> int:
        return many(self.row.extent) if self.row is not None else 1

    def no_wider_than(self, columns: int) -> Block:
        """The block, where other nests in its lane loop take so many columns at a time."""
        return replace(self, shape=replace(self.shape, columns=min(self.shape.columns, columns)))

    def width(self, t: RegisterTile) -> int:
        """Columns of a block with as many registers."""
        return t.registers // self.shape.beside * self.lane.lanes


def many(extent: Dim, unit: int = 1) -> int:
    """For how many indices a tile is chosen: where that is open for many, of which every height divides the rows, because what is left
    of fewer has code of its own.  It is `unit` where the loop follows others.
    """
    most = interval(extent, {})
    return min(most[1], DIVIDED * unit) if most and not isinstance(extent, int) else known(extent, unit)


def families(blocks: list[Block]) -> list[list[Block]]:
    """Contractions that have to agree: those that share a row loop or panels of constants."""
    found: list[list[Block]] = []
    for b in blocks:
        near = [f for f in found if any(o.row == b.row or o.panels & b.panels for o in f)]
        found = [f for f in found if f not in near]
        found.append([*(o for f in near for o in f), b])
    return found
