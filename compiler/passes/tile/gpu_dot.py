"""Choose the blocks of a contraction that a GPU's matrix units multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.scalar import Call, Expr, Load
from compiler.ir.tile import Kernel, Range, Reduce, Stmt
from compiler.ir.types import DType, f32, f64, i8, i32
from compiler.passes.access import Accesses, contraction
from compiler.passes.base import Context, TilePass, register
from compiler.passes.tile.gpu_rows import LEAST, power_of_two


@register
@dataclass(frozen=True)
class GpuDot(TilePass):
    """parallel %i { parallel %j { reduce add %k { x[%i, %k] * w[%j, %k] } } }
    ->  parallel %i tile 64 { parallel %j tile 64 { reduce add %k tile 32 { x[%i, %k] * w[%j, %k] } } }

    One loop that only the first factor follows, one that only the second follows, and one reduced loop of both: the longest
    of each, inner ones first.  Loops that are tiled already keep their tile; the others shrink until a block of sums has at
    most `sums` elements and the blocks of factors fit in `shared` bytes of memory on the chip.
    """

    name = "gpu-dot"
    rows: int = 64
    columns: int = 64
    depth: int = 32
    sums: int = 8192
    shared: int = 1 << 16

    def run(self, ir: Kernel, context: Context) -> Kernel:
        table = Accesses(ir)
        sizes: dict[str, int] = {}
        for stmt in tile.walk(ir.body):
            if isinstance(stmt, Reduce) and contraction(stmt):
                missed = self.block(table, stmt, sizes)
                if missed:
                    context.missed(self, f"%{stmt.name}: {missed}")
                else:
                    context.applied(self, f"%{stmt.name}: blocks of {', '.join(f'%{v} {n}' for v, n in sizes.items())}")
        return ir.with_body(tile.map_ranges(ir.body, lambda r, _: r.with_(tile=sizes.get(r.var, r.tile))))

    def block(self, table: Accesses, s: Reduce, sizes: dict[str, int]) -> str:
        """Add the tiles of one contraction to `sizes`, or say why there are none."""
        assert isinstance(s.value, Call)
        a, b = (follows(table, e) for e in s.value.operands)
        if not multiplies(*s.value.operands):
            return f"no matrix unit multiplies {s.value.operands[0].dtype}"
        around = [r for r in table.loops[s.ranges[0].var][2] if r.extent != 1]
        row = longest([r for r in around if r.var in a - b])
        column = longest([r for r in around if r.var in b - a])
        depth = longest([r for r in s.ranges if r.var in a & b and r.extent != 1])
        if row is None or column is None or depth is None:
            return "a factor is used only once"
        if any(r.tile > 1 and r.var in a & b for r in around):
            return "both factors follow a tiled loop"

        fixed = {r.var for r in (row, column, depth) if r.tile > 1 or r.var in sizes}
        for r, most in ((depth, self.depth), (column, self.columns), (row, self.rows)):
            sizes[r.var] = max(LEAST, sizes.get(r.var, r.tile if r.tile > 1 else min(most, power_of_two(length(r)))))
        bytes_ = max(narrow(e).bytes for e in s.value.operands)

        def too_large() -> bool:
            rows, columns, steps = (sizes[r.var] for r in (row, column, depth))
            return rows * columns > self.sums or (rows + columns) * steps * bytes_ > self.shared

        for r in (row, depth, column):
            while too_large() and r.var not in fixed and sizes[r.var] > LEAST:
                sizes[r.var] //= 2
        return ""


def follows(table: Accesses, e: Expr) -> frozenset[str]:
    """The loops that a value varies over, those around the local buffers it reads among them."""
    rows = {x.buffer for x in e.parts if isinstance(x, Load) and table.roles[x.buffer] == "local"}
    return table.dependence(e).union(*(table.private[b] for b in rows))


def multiplies(x: Expr, y: Expr) -> bool:
    """Whether matrix units take the factors: floats as they are, halves and bytes before they were widened."""
    return x.dtype in (f32, f64) or (x.dtype == i32 and narrow(x) == narrow(y) == i8)


def narrow(e: Expr) -> DType:
    """The dtype of `e` before it was cast, if it was."""
    return e.operands[0].dtype if isinstance(e, Call) and e.primitive == "cast" else e.dtype


def length(r: Range) -> int:
    """The extent of a loop; a block's worth where it is symbolic."""
    return r.extent if isinstance(r.extent, int) else 64


def longest(loops: Sequence[Range]) -> Range | None:
    """The innermost of the loops that fill a block, else the longest."""
    return max(reversed(loops), key=lambda r: min(length(r), 64), default=None)


def is_block(stmt: Stmt) -> bool:
    """Whether some loop of `stmt` is tiled."""
    return any(r.tile > 1 for r in tile.ranges(stmt))
