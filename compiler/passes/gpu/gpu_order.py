"""Order the programs of a kernel so that those that run together read the same blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from compiler.analysis.accesses import Accesses, buffer_bytes
from compiler.cost.machine import GPU
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.kernel import For, Kernel, Range, dim_hint, loads
from compiler.ir.tile.loop_nest import perfect_parallel_nest, trip_count
from compiler.passes.base import Context, TilePass, register
from compiler.passes.gpu.gpu_rows import gpu_of
from compiler.transforms.interchange import interchange
from compiler.transforms.split import strip_mine


@register
@dataclass(frozen=True)
class GpuOrder(TilePass):
    """Order programs in groups of rows or columns, each of which goes along the other loop.

    parallel %i in 0..4096 tile 128 { parallel %j in 0..4096 tile 128 { ... } }  ->
    parallel %i.group in 0..4 { parallel %j in 0..4096 tile 128 { parallel %i in 1024*%i.group..1024*%i.group + 1024 tile 128 { ... } } }

    The programs that run at the same time then read few blocks of both operands, which stay in the last cache ("program order" of
    Triton's tutorials, "threadblock swizzle" of CUTLASS).  Applies to two tiled loops, where some buffers are read along one of them
    only, and all of those do not fit in the cache.  The group that reads the fewest bytes is taken, `group` blocks of rows if that is not
    0; it divides its loop, or is all of it where the size is dynamic.
    """

    name = "gpu-order"
    exact = True
    group: int = 0

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = perfect_parallel_nest(ir.body)
        tiled = [f for f in nest if f.range.tile > 1]
        if len(tiled) != 2 or not all(f.range.lo == 0 and not variables(f.range.extent) for f in tiled):
            return ir
        rows, columns = tiled
        reuse = OperandReuse.of(ir, rows, columns, gpu_of(context))
        groups = [(f, n) for f in tiled for n in group_sizes(f.range)]
        if self.group:
            groups = [(rows, self.group)]
        grouped, size = min(groups, key=lambda g: reuse.wave_bytes(*g))
        before, after = (reuse.wave_bytes(*g) / 1e6 for g in ((rows, 1), (grouped, size)))
        if reuse.fits_in_cache or after >= before:
            return ir
        message = (
            f"%{grouped.range.var} in groups of {size} blocks: {after:.1f} MB for a wave instead of {before:.1f} MB"
        )
        if not context.may_apply(self, message):
            return ir
        others, along = [f for f in nest if f not in tiled], columns if grouped is rows else rows
        if size == block_count(grouped.range):
            return ir.with_body(interchange([*others, along, grouped], nest[-1].body))
        strips = strip_mine(grouped.range, size * grouped.range.tile, f"{grouped.range.var}.group")
        order = [*others, For(strips.outer, (), True), along, For(strips.inner, (), True)]
        return ir.with_body(interchange(order, nest[-1].body))


@dataclass(frozen=True)
class OperandReuse:
    """Bytes of buffers that a block along each of two loops reads; programs that run at once."""

    block_bytes: dict[For, float]
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
        blocks = {f: size / block_count(f.range) for f, size in bytes_.items()}
        fits = sum(bytes_.values()) <= gpu.kept_share * gpu.l2 or not all(bytes_.values())
        return OperandReuse(blocks, gpu.multiprocessors, fits)

    def wave_bytes(self, grouped: For, size: int) -> float:
        """Return the bytes that the programs of a wave read, if it goes through groups of blocks of one loop along the other."""
        own, other = self.block_bytes[grouped], sum(n for f, n in self.block_bytes.items() if f is not grouped)
        return min(size, self.wave) * own + ceil(self.wave / size) * other


def block_count(r: Range) -> int:
    """Return the blocks of a loop, under the size hints."""
    return max(1, dim_hint(trip_count(r)))


def group_sizes(r: Range) -> list[int]:
    """Return the numbers of blocks that divide a loop of static extent without a rest, and all of them."""
    count = block_count(r)
    extent = r.extent if isinstance(r.extent, int) else 1
    return [*(n for n in range(1, count) if extent % (n * r.tile) == 0), count]
