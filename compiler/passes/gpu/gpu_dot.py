"""Tile contractions into the blocks that a GPU's matrix units multiply."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from compiler.analysis.accesses import Accesses
from compiler.cost.gpu_contraction import product_loops
from compiler.cost.gpu_product import MIN_BLOCK, ProductBlock, best_blocks
from compiler.cost.machine import GPU
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import Kernel, Range, Reduce, Stmt
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of

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
    """

    name = "gpu-dot"
    rows: int = 0
    columns: int = 0
    depth: int = 0
    warps: int = 0
    stages: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        choice, chosen = BlockChoice(Accesses(ir), gpu_of(context), self), list[str]()
        for stmt in tile.walk(ir.body):
            if contraction := contraction_of(stmt):
                name, missed = contraction.reduction.name, choice.add(contraction)
                if missed:
                    context.missed(self, f"%{name}: {missed}")
                else:
                    chosen.append(f"%{name}: {choice.remark}")
        if not chosen or not context.may_apply(self, chosen[0]):
            return ir
        for message in chosen[1:]:
            context.also_applied(self, message)
        if self == GpuDot():
            context.propose(self, *(GpuDot(b.rows, b.columns, b.depth, b.warps, b.stages) for b in choice.alternatives))
        body = tile.expand_stmts(ir.body, choice.with_depth_innermost)
        body = tile.map_ranges(body, lambda r, _: choice.ranges.get(r.var, r))
        return replace(ir, body=body, warps=choice.warps)


@dataclass
class BlockChoice:
    """The loops with the tiles that are chosen so far, and the warps that all contractions of a kernel share."""

    table: Accesses
    gpu: GPU
    options: GpuDot
    ranges: dict[str, Range] = field(default_factory=dict)
    warps: int = 0
    remark: str = ""
    alternatives: list[ProductBlock] = field(default_factory=list)
    pipelined: set[str] = field(default_factory=set)

    def add(self, c: Contraction) -> str:
        """Choose the tiles of one contraction; return the reason if there are none, else ""."""
        found = product_loops(self.table, c)
        if isinstance(found, str):
            return found
        o, given = self.options, (self.ranges.get(r.var, r).tile for r in found.loops)
        rows, columns, depth = (0 if n == 1 else max(MIN_BLOCK, n) for n in given)
        fixed = ProductBlock(o.rows or rows, o.columns or columns, o.depth or depth, self.warps or o.warps, o.stages)
        best = best_blocks(found.product, self.gpu, fixed)
        if not best:
            return "no block fits"
        block, cost = best[0]
        if not self.ranges:
            shapes = {(b.rows, b.columns, b.depth): b for b, _ in reversed(best)}
            self.alternatives = sorted(shapes.values(), key=[b for b, _ in best].index)[1 : MAX_ALTERNATIVES + 1]
        self.warps, self.remark = block.warps, f"blocks of {block}: {cost}"
        for r, side in zip(found.loops, (block.rows, block.columns, block.depth), strict=True):
            self.ranges[r.var] = r.with_(tile=side)
        loop = found.pipelined_loop(block.depth)
        if loop is not None:
            known = self.ranges.get(loop.var, loop)  # operands of one product may have to pass through registers
            stages = min(known.stages, block.stages) if loop.var in self.pipelined else block.stages
            self.ranges[loop.var] = known.with_(stages=stages)
            self.pipelined.add(loop.var)
        return ""

    def with_depth_innermost(self, stmt: Stmt) -> tuple[Stmt]:
        """Return a reduction with the loop that loads are pipelined along as the innermost one."""
        if not isinstance(stmt, Reduce):
            return (stmt,)
        return (replace(stmt, ranges=tuple(sorted(stmt.ranges, key=lambda r: r.var in self.ranges))),)


def is_tiled(stmt: Stmt) -> bool:
    """Return True if some loop of `stmt` is tiled."""
    return any(r.tile > 1 for r in tile.stmt_ranges(stmt))
