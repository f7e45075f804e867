"""Tile contractions into the blocks that a GPU's matrix units multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.analysis.accesses import Accesses
from compiler.ir.scalar import Expr, Load
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.contraction import Contraction, contraction_of
from compiler.ir.tile.kernel import Kernel, Range, Stmt
from compiler.passes.base import Context, TilePass, from_machine, register
from compiler.passes.gpu.gpu_rows import MIN_BLOCK, next_power_of_2
from compiler.target import MATRIX_DTYPES


@register
@dataclass(frozen=True)
class GpuDot(TilePass):
    """Tile a contraction for matrix units.

    parallel %i { parallel %j { reduce add %k { x[%i, %k] * w[%j, %k] } } }
    ->  parallel %i tile 64 { parallel %j tile 64 { reduce add %k tile 32 { x[%i, %k] * w[%j, %k] } } }

    Tiles a loop of the first operand only, a loop of the second only, and a reduced loop of both: the longest of each.
    Existing tiles stay.  The others shrink until there are at most `max_accumulators`, and the operands' blocks fit in
    `max_shared_bytes` of shared memory.
    """

    name = "gpu-dot"
    rows: int = from_machine("gpu_rows")
    columns: int = from_machine("gpu_columns")
    depth: int = from_machine("gpu_depth")
    max_accumulators: int = from_machine("gpu_accumulators")
    max_shared_bytes: int = from_machine("gpu_shared_bytes")

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        sizes: dict[str, int] = {}
        for stmt in tile.walk(ir.body):
            if contraction := contraction_of(stmt):
                name, chosen = contraction.reduction.name, dict(sizes)
                missed = self.choose_block(table, contraction, chosen)
                if missed:
                    context.missed(self, f"%{name}: {missed}")
                elif context.may_apply(self, f"%{name}: blocks of {', '.join(f'%{v} {n}' for v, n in chosen.items())}"):
                    sizes = chosen
        return ir.with_body(tile.map_ranges(ir.body, lambda r, _: r.with_(tile=sizes.get(r.var, r.tile))))

    def choose_block(self, table: Accesses, c: Contraction, sizes: dict[str, int]) -> str:
        """Add the tiles of one contraction to `sizes`; return the reason if there are none, else ""."""
        a, b = (dependent_loops(table, e) for e in (c.lhs, c.rhs))
        operands = c.matrix_operands(MATRIX_DTYPES)
        if operands is None:
            return f"no matrix unit multiplies {c.lhs.dtype}"
        ranges = c.reduction.ranges
        around = [r for r in table.loops[ranges[0].var][2] if r.extent != 1]
        row = longest([r for r in around if r.var in a - b])
        column = longest([r for r in around if r.var in b - a])
        depth = longest([r for r in ranges if r.var in a & b and r.extent != 1])
        if row is None or column is None or depth is None:
            return "no reuse of an operand"
        if any(r.tile > 1 and r.var in a & b for r in around):
            return "both operands depend on a tiled loop"

        fixed = {r.var for r in (row, column, depth) if r.tile > 1 or r.var in sizes}
        for r, most in ((depth, self.depth), (column, self.columns), (row, self.rows)):
            default = r.tile if r.tile > 1 else min(most, next_power_of_2(block_extent(r)))
            sizes[r.var] = max(MIN_BLOCK, sizes.get(r.var, default))
        bytes_ = operands[0].dtype.bytes

        def too_large() -> bool:
            rows, columns, steps = (sizes[r.var] for r in (row, column, depth))
            return rows * columns > self.max_accumulators or (rows + columns) * steps * bytes_ > self.max_shared_bytes

        for r in (row, depth, column):
            while too_large() and r.var not in fixed and sizes[r.var] > MIN_BLOCK:
                sizes[r.var] //= 2
        return ""


def dependent_loops(table: Accesses, e: Expr) -> frozenset[str]:
    """Return the loops that a value depends on, including those around the local buffers it reads."""
    local_buffers = {x.buffer for x in e.subexprs if isinstance(x, Load) and table.roles[x.buffer] == "local"}
    return table.varying_loops(e).union(*(table.local_scopes[b] for b in local_buffers))


ASSUMED_EXTENT = 64
"""Extent assumed for dynamic loops: one that fills a block of a matrix product."""


def block_extent(r: Range) -> int:
    """Return the extent of a loop, `ASSUMED_EXTENT` if it is dynamic."""
    return r.extent if isinstance(r.extent, int) else ASSUMED_EXTENT


def longest(loops: Sequence[Range]) -> Range | None:
    """Return the innermost loop that fills a block, else the longest one; None if there are no loops."""
    return max(reversed(loops), key=lambda r: min(block_extent(r), ASSUMED_EXTENT), default=None)


def is_tiled(stmt: Stmt) -> bool:
    """Return True if some loop of `stmt` is tiled."""
    return any(r.tile > 1 for r in tile.stmt_ranges(stmt))
