"""Choose how many indices of each loop are taken at once, so that values stay in registers and latencies overlap."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.tile import For, Kernel, Range, Reduce, Stmt
from compiler.passes.access import Access, Accesses, contraction
from compiler.passes.base import Context, TilePass, register
from compiler.perf.contraction import RegisterTile, best_tile
from compiler.perf.machine import Machine


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
        machine = context.machine or Machine()
        table = Accesses(ir)
        sizes: dict[str, int] = {}
        sums = sorted((s for s in tile.walk(ir.body) if contraction(s)), key=lambda s: -weight(table, s))
        for s in sums:
            assert isinstance(s, Reduce)
            self.block(table, s, sizes, machine, context)
        for v, (r, stmt, _) in table.loops.items():
            if r.lanes and v not in sizes:
                sizes[v] = self.width(r, stmt)

        def rule(r: Range, _: Stmt) -> Range:
            return r.with_(tile=sizes[r.var]) if r.var in sizes else r

        return ir.with_body(tile.map_ranges(ir.body, rule))

    def width(self, r: Range, stmt: Stmt) -> int:
        """Registers per step of a plain lane loop; fewer where much is computed on each."""
        heavy = isinstance(stmt, For) and any(isinstance(s, Reduce) for s in tile.walk(stmt.body))
        count = 2 if heavy else self.registers
        extent = r.extent if isinstance(r.extent, int) else r.lanes * count
        return min(r.lanes * count, -(-extent // r.lanes) * r.lanes, max(extent, 1))

    def block(self, table: Accesses, s: Reduce, sizes: dict[str, int], machine: Machine, context: Context) -> None:
        """Pick rows and registers for one contraction."""
        around = table.loops[s.ranges[0].var][2]
        lane = next((r for r in around if r.lanes), None)
        if lane is None:
            return
        reads = [a for a in table.all if a.stmt is s and not a.is_store]
        row = self.row_loop(table, reads, lane, around)
        rows = row.extent if row is not None and isinstance(row.extent, int) else 1
        columns = lane.extent if isinstance(lane.extent, int) else lane.lanes
        if row is not None and row.var in sizes:
            choice = RegisterTile(sizes[row.var], best_tile(sizes[row.var], columns, lane.lanes, machine, sizes[row.var]).registers)
        else:
            choice = best_tile(rows, columns, lane.lanes, machine)
        if self.rows or self.columns:
            choice = RegisterTile(self.rows or choice.rows, (self.columns or choice.registers * lane.lanes) // lane.lanes)
        if row is not None:
            sizes.setdefault(row.var, min(choice.rows, rows))
        sizes.setdefault(lane.var, min(choice.registers * lane.lanes, columns))
        context.applied(self, f"{choice.rows} rows x {choice.registers} registers of {lane.lanes} lanes for %{s.name}")

    @staticmethod
    def row_loop(table: Accesses, reads: list[Access], lane: Range, around: tuple[Range, ...]) -> Range | None:
        """The loop along which what varies across lanes is used again: the longest that those loads do not follow."""
        moving = [a for a in reads if table.follows(a, lane.var)]
        free = [r for r in around if r is not lane and r.extent != 1 and not any(table.follows(a, r.var) for a in moving)]
        used = [r for r in free if any(table.follows(a, r.var) for a in reads)]
        return max(used, key=lambda r: (r.extent if isinstance(r.extent, int) else 1, around.index(r)), default=None)


def weight(table: Accesses, s: Stmt) -> int:
    """How often a reduction adds."""
    return max((a.count for a in table.all if a.stmt is s), default=0)
