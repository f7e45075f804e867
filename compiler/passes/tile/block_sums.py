"""Take long sums of products in blocks, so that what they read of each operand stays near."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from compiler.ir.index import Dim, ceildiv, minimum, var
from compiler.ir.scalar import Load, Ref, const
from compiler.ir.tile import Block, For, Kernel, Range, Reduce, Store, known, known_steps
from compiler.passes.access import Access, Accesses, contraction, in_nest, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh, with_unique_names
from compiler.perf.machine import Machine


class Product(NamedTuple):
    """A sum of products and the store of it, which a nest of loops holds and nothing else."""

    sum: Reduce
    store: Store

    @property
    def depth(self) -> Range:
        return self.sum.ranges[0]


@register
@dataclass(frozen=True)
class BlockSums(TilePass):
    """parallel %i { parallel %j { %s = reduce add %r { x[%r, %i] * w[%r, %j] }  store %s, y } }
    ->  parallel %i.block { for %i.., %j { store 0, y }  for %r.block { for %j { for %i.. { %s = reduce add %r.. { ... }  store y + %s, y } } } }

    Where operands lie across a sum, each step reads a few elements of another row, and every tile of accumulators passes all of
    them: more lines than the caches hold, on more pages than are known.  The rows of a block of `size` steps stay (the loop over
    the depth of Goto and van de Geijn, 2008).  Pays for sums of `least` products and more; where one operand lies along the sum,
    if the other's rows are a multiple of `apart` bytes apart, so that few cache sets hold them.  Shorter chains of additions
    round less, too.
    """

    name = "block-sums"
    size: int = 256
    least: int = 1024
    apart: int = 4096
    rows: int = 128

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = nested_fors(ir.body)
        product = self.product(nest)
        if product is None or not self.reads_far(context.accesses(ir), nest, product):
            return ir
        context.applied(self, f"%{product.depth.var} in blocks of {self.size}")
        context.offer(self, None)
        blocks = self.blocks(nest, context.machine or Machine())
        body = self.in_blocks(product, nest, blocks, Fresh(ir))
        return with_unique_names(ir.with_body(in_nest(nest[:-2], body)))

    def product(self, nest: list[For]) -> Product | None:
        """The long sum that the two innermost loops compute and store as it is."""
        if len(nest) < 2 or not all(f.parallel for f in nest) or not isinstance(nest[-2].range.extent, int):
            return None
        match nest[-1].body:
            case (Reduce(body=(), ranges=(depth,)) as sum_, Store() as store) if contraction(sum_):
                plain = store.value == Ref(sum_.value.dtype, sum_.name)
                return Product(sum_, store) if plain and known(depth.extent) >= self.least else None
        return None

    def reads_far(self, table: Accesses, nest: list[For], product: Product) -> bool:
        """Whether the operands, one for the rows and one for the columns of the result, lie so that blocks pay."""
        rows, columns, depth = nest[-2].range.var, nest[-1].range.var, product.depth.var
        reads = [a for a in table.all if a.stmt is product.sum]
        across = [a for a in reads if table.follows(a, columns) and not table.follows(a, rows)]
        along = [a for a in reads if table.follows(a, rows) and not table.follows(a, columns)]
        if len(reads) != 2 or len(across) != 1 or len(along) != 1 or any(is_settled(table, a) for a in reads):
            return False
        (w,), (x,) = across, along
        step, other = table.step(w, depth), table.step(x, depth)
        if not step or not other or table.step(w, columns) != 1 or abs(step) == 1:
            return False
        return abs(other) > 1 or step * table.types[w.buffer].dtype.bytes % self.apart == 0

    def blocks(self, nest: list[For], machine: Machine) -> int:
        """How many blocks of `rows` and more the rows are parted into, so that threads have enough."""
        wanted = -(-2 * machine.threads // known_steps(f.range for f in nest[:-2]))
        return max(1, min(known(nest[-2].range.extent) // self.rows, wanted))

    def in_blocks(self, product: Product, nest: list[For], blocks: int, fresh: Fresh) -> Block:
        """The result, block by block of its rows: cleared, and added to by each block of the sum."""
        rows, columns, depth = nest[-2].range, nest[-1].range, product.depth
        block = Range(fresh(f"{rows.var}.block"), 0, blocks)
        if blocks > 1:
            size = ceildiv(rows.extent, blocks)
            start = rows.lo + var(block.var) * size
            rows = rows.with_(lo=start, hi=minimum(start + size, rows.hi, {block.var: (0, blocks - 1)}))
        total = product.sum.value.dtype
        so_far = Load(total, product.store.buffer, product.store.index)
        longer = replace(product.store, value=so_far + product.store.value)

        def added(lo: Dim, hi: Dim) -> Block:
            part = replace(product.sum, ranges=(depth.with_(lo=lo, hi=hi),))
            return in_nest([For(columns, ()), For(rows, ())], (part, longer))

        clear = in_nest([For(rows, ()), For(columns, ())], (replace(product.store, value=const(0, total)),))
        number, whole = fresh(f"{depth.var}.block"), depth.extent // self.size
        start, end = depth.lo + var(number) * self.size, depth.lo + whole * self.size
        body: Block = (*clear, For(Range(number, 0, whole), added(start, start + self.size)))
        body = body if end == depth.hi else (*body, *added(end, depth.hi))
        return (For(block, body, parallel=True),) if blocks > 1 else body


def is_settled(table: Accesses, a: Access) -> bool:
    """Whether an operand will lie as it is read in any case, or may not be read everywhere."""
    return table.roles[a.buffer] not in ("in", "inout") or a.masked
