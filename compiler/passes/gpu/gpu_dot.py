"""Tile contractions into the blocks that a GPU's matrix units multiply."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_contraction import product_loops
from compiler.cost.gpu_product import MIN_BLOCK, ProductBlock, best_blocks, reads_shared_memory
from compiler.cost.machine import GPU
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import Kernel, Let, Range, Reduce, Stmt, Store
from compiler.ir.tile.loop_nest import perfect_parallel_nest
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.target import MATRIX_DTYPES

RESULT_BYTES = 4
"""Bytes of operands from which on results go from registers to memory: the loop along which they are neighbours stays the columns."""

CLOSE_SHARE = 0.02
"""Difference of estimated times, as a share, up to which blocks take about the same."""

MAX_ALTERNATIVES = 4
"""Most blocks that the autotuner tries beside the best one by the cost model; bounds compile time."""


@register
@dataclass(frozen=True)
class GpuDot(TilePass):
    """Tile a contraction for matrix units.

    kernel { parallel %i { parallel %j { reduce add %r, %k { x[%i, %r, %k] * w[%j, %r, %k] } } } }  ->
    kernel warps 8 { parallel %i tile 128 { parallel %j tile 256 {
      reduce add %r, %k tile 64 stages 4 { x[%i, %r, %k] * w[%j, %r, %k] } } } }

    Tiles a loop of the first operand only, a loop of the second only, and a reduced loop of both, which becomes the innermost one: the
    longest of each.  The cost model of matrix products (compiler.cost.gpu_product) chooses tiles, warps and stages.  An option that is not 0
    is taken instead, and tiles that exist stay.  The autotuner may try the next best blocks, each of another shape.

    The factor whose loop is tiled as rows becomes the left one.  Where the transposed product of a narrow dtype takes less time, that is the
    other factor: matrix units read both operands in shared memory if a block has `matrix_rows` rows, so that 32 x 128 results are computed as
    128 x 32.  Of blocks that take about the same time, one that they read there is taken.
    """

    name = "gpu-dot"
    rows: int = 0
    columns: int = 0
    depth: int = 0
    warps: int = 0
    stages: int = 0
    transposed: bool = False

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table, gpu = Accesses(ir), gpu_of(context)
        choice = BlockChoice.of(table, gpu, self)
        if may_transpose(ir, self):
            other = BlockChoice.of(table, gpu, replace(self, transposed=not self.transposed))
            choice = other if other.is_better_than(choice) else choice
        for message in choice.missed:
            context.missed(self, message)
        if not choice.chosen or not context.may_apply(self, choice.chosen[0]):
            return ir
        for message in choice.chosen[1:]:
            context.also_applied(self, message)
        if self == GpuDot():
            context.propose(self, *choice.alternatives)
        body = tile.expand_stmts(ir.body, choice.schedule)
        body = tile.map_ranges(body, lambda r, _: choice.ranges.get(r.var, r))
        return replace(ir, body=body, warps=choice.warps)


def may_transpose(ir: Kernel, options: GpuDot) -> bool:
    """Return True if `options` leave the sides open, and a nest of parallel loops has products of narrow dtypes and stores their results."""
    nest = perfect_parallel_nest(ir.body)
    inside = [s for s in nest[-1].body if not isinstance(s, (Let, Store))] if nest else []
    operands = [c.matrix_operands(MATRIX_DTYPES) if c else None for c in map(contraction_of, inside)]
    is_narrow = bool(operands) and all(o is not None and o[0].dtype.bytes < RESULT_BYTES for o in operands)
    return is_narrow and not (options.rows or options.columns)


@dataclass
class BlockChoice:
    """The loops with the tiles that are chosen so far, and the warps that all contractions of a kernel share.

    `nanoseconds` are those of the products in their blocks; matrix units read operands of `read_in_shared` of them in shared memory.
    """

    table: Accesses
    gpu: GPU
    options: GpuDot
    ranges: dict[str, Range] = field(default_factory=dict)
    warps: int = 0
    chosen: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    alternatives: list[GpuDot] = field(default_factory=list)
    pipelined: set[str] = field(default_factory=set)
    exchanged: set[str] = field(default_factory=set)
    nanoseconds: int = 0
    read_in_shared: int = 0

    @staticmethod
    def of(table: Accesses, gpu: GPU, options: GpuDot) -> BlockChoice:
        """Choose the tiles of all contractions of a kernel, one after another."""
        choice = BlockChoice(table, gpu, options)
        for contraction in filter(None, map(contraction_of, tile.walk(table.kernel.body))):
            if missed := choice.add(contraction):
                choice.missed.append(f"%{contraction.reduction.name}: {missed}")
        return choice

    def is_better_than(self, other: BlockChoice) -> bool:
        """Return True if blocks take less time, or about the same and more of them are read in shared memory."""
        if len(self.missed) != len(other.missed):
            return len(self.missed) < len(other.missed)
        is_close = abs(self.nanoseconds - other.nanoseconds) <= CLOSE_SHARE * other.nanoseconds
        if not is_close:
            return self.nanoseconds < other.nanoseconds
        return self.read_in_shared > other.read_in_shared

    def add(self, c: Contraction) -> str:
        """Choose the tiles of one contraction; return the reason if there are none, else ""."""
        o = self.options
        found = product_loops(self.table, c, o.transposed)
        if isinstance(found, str):
            return found
        given = (self.ranges.get(r.var, r).tile for r in found.loops)
        rows, columns, depth = (0 if n == 1 else max(MIN_BLOCK, n) for n in given)
        fixed = ProductBlock(o.rows or rows, o.columns or columns, o.depth or depth, self.warps or o.warps, o.stages)
        best = best_blocks(found.product, self.gpu, fixed)
        if not best:
            return "no block fits"
        close = [x for x in best if x[1].nanoseconds <= (1 + CLOSE_SHARE) * best[0][1].nanoseconds]
        in_shared = [x for x in close if reads_shared_memory(x[0], found.product, self.gpu)]
        block, cost = (in_shared or close)[0]
        if not self.ranges:
            shapes = {(b.rows, b.columns, b.depth): b for b, _ in reversed(best)}
            shapes.pop((block.rows, block.columns, block.depth))
            others = sorted(shapes.values(), key=[b for b, _ in best].index)[:MAX_ALTERNATIVES]
            self.alternatives = [GpuDot(b.rows, b.columns, b.depth, b.warps, b.stages, o.transposed) for b in others]
        self.warps = block.warps
        self.read_in_shared += bool(in_shared)
        self.nanoseconds += cost.nanoseconds
        self.chosen.append(f"%{c.reduction.name}: {'transposed, ' * o.transposed}blocks of {block}: {cost}")
        self.exchanged |= {found.loops[-1].var} if found.exchanged else set()
        for r, side in zip(found.loops, (block.rows, block.columns, block.depth), strict=True):
            self.ranges[r.var] = r.with_(tile=side)
        loop = found.pipelined_loop(block.depth)
        if loop is not None:
            known = self.ranges.get(loop.var, loop)  # operands of one product may have to pass through registers
            stages = min(known.stages, block.stages) if loop.var in self.pipelined else block.stages
            self.ranges[loop.var] = known.with_(stages=stages)
            self.pipelined.add(loop.var)
        return ""

    def schedule(self, stmt: Stmt) -> tuple[Stmt]:
        """Return a contraction with the factor of the rows on the left, and the loop that loads are pipelined along as the innermost one."""
        if not isinstance(stmt, Reduce):
            return (stmt,)
        contraction = contraction_of(stmt)
        if contraction and self.exchanged & {r.var for r in stmt.ranges}:
            stmt = contraction.exchanged
        return (replace(stmt, ranges=tuple(sorted(stmt.ranges, key=lambda r: r.var in self.ranges))),)


def is_tiled(stmt: Stmt) -> bool:
    """Return True if some loop of `stmt` is tiled."""
    return any(r.tile > 1 for r in tile.stmt_ranges(stmt))
