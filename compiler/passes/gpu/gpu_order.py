"""Order the programs of a kernel so that those that run together read the same blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from compiler.analysis.accesses import Accesses, buffer_bytes
from compiler.cost.machine import GPU
from compiler.ir.tile.kernel import For, Kernel, dim_hint, loads
from compiler.ir.tile.loop_nest import perfect_parallel_nest, trip_count
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.transforms.interchange import interchange
from compiler.transforms.split import strip_mine


@register
@dataclass(frozen=True)
class GpuOrder(TilePass):
    """Order programs in groups of rows, column by column in a group.

    parallel %i in 0..4096 tile 128 { parallel %j in 0..4096 tile 128 { ... } }  ->
    parallel %i.group in 0..4 { parallel %j in 0..4096 tile 128 { parallel %i in 1024*%i.group..1024*%i.group + 1024 tile 128 { ... } } }

    The programs that run at the same time then read few blocks of both operands, which stay in the last cache ("program order" of
    Triton's tutorials, "threadblock swizzle" of CUTLASS).  Applies to two tiled loops, where some buffers are read along one of them
    only, and all of those do not fit in the cache.  The group that reads the fewest bytes is taken, `group` blocks if that is not 0; it
    divides the rows.
    """

    name = "gpu-order"
    exact = True
    group: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = perfect_parallel_nest(ir.body)
        tiled = [f for f in nest if f.range.tile > 1]
        if len(tiled) != 2 or not all(isinstance(f.range.extent, int) and f.range.lo == 0 for f in tiled):
            return ir
        rows, columns = tiled
        reuse = OperandReuse.of(ir, rows, columns, gpu_of(context))
        sizes = [self.group] if self.group else reuse.group_sizes()
        best = min(sizes, key=reuse.wave_bytes)
        if reuse.fits_in_cache or best == 1:
            return ir
        before, after = (reuse.wave_bytes(n) / 1e6 for n in (1, best))
        message = f"%{rows.range.var} in groups of {best} blocks: {after:.1f} MB for a wave instead of {before:.1f} MB"
        if not context.may_apply(self, message):
            return ir
        others = [f for f in nest if f not in tiled]
        if best == reuse.rows:
            return ir.with_body(interchange([*others, columns, rows], nest[-1].body))
        strips = strip_mine(rows.range, best * rows.range.tile, f"{rows.range.var}.group")
        order = [*others, For(strips.outer, (), True), columns, For(strips.inner, (), True)]
        return ir.with_body(interchange(order, nest[-1].body))


@dataclass(frozen=True)
class OperandReuse:
    """Blocks of rows, and the bytes of buffers that a block of rows and one of columns read; programs that run at once."""

    rows: int
    row_length: int
    row_bytes: float
    column_bytes: float
    wave: int
    fits_in_cache: bool

    @staticmethod
    def of(ir: Kernel, rows: For, columns: For, gpu: GPU) -> OperandReuse:
        """Measure the buffers that are read along one of two loops only."""
        table, bytes_ = Accesses(ir), {rows: 0.0, columns: 0.0}
        read = {e.buffer for e in loads(ir.body)} & {p.name for p in ir.params}
        for a in {a.buffer: a for a in table.all if a.buffer in read}.values():
            along = [f for f in (rows, columns) if table.depends_on(a, f.range.var)]
            if len(along) == 1:
                bytes_[along[0]] += buffer_bytes(table, a)
        counts = {f: dim_hint(trip_count(f.range)) for f in bytes_}
        blocks = {f: size / counts[f] for f, size in bytes_.items()}
        fits = sum(bytes_.values()) <= gpu.kept_share * gpu.l2 or not all(bytes_.values())
        length = dim_hint(rows.range.extent)
        return OperandReuse(counts[rows], length, blocks[rows], blocks[columns], gpu.multiprocessors, fits)

    def group_sizes(self) -> list[int]:
        """Return the numbers of blocks that divide the rows without a rest."""
        divides = (
            n
            for n in range(1, self.rows)
            if self.rows % n == 0 and self.row_length % (self.row_length // self.rows) == 0
        )
        return [*divides, self.rows]

    def wave_bytes(self, group: int) -> float:
        """Return the bytes that the programs of a wave read, if it goes through groups of rows column by column."""
        return min(group, self.wave) * self.row_bytes + ceil(self.wave / group) * self.column_bytes
