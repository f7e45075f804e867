"""Take long sums of products in blocks, so that what they read of each operand stays near."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from compiler.ir.index import Dim, ceildiv, minimum, var
from compiler.ir.scalar import Load, Ref, const
from compiler.ir.tile import Block, For, Kernel, Range, Reduce, Store, known, known_extent, known_steps
from compiler.passes.access import Access, Accesses, contraction, in_nest, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import Fresh, with_unique_names
from compiler.perf.machine import Machine

SHORT = 16
"""Rows or columns that fill a tile of accumulators."""


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
    ->  parallel %i.part { for %i.., %j { store 0, y }  for %r.block { for %j { for %i.. { %s = reduce add %r.. { ... }  store y + %s, y } } } }

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
    long: int = 128

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = nested_fors(ir.body)
        product = self.product(nest)
        if product is None or not self.reads_far(context.accesses(ir), nest, product):
            return ir
        context.applied(self, f"%{product.depth.var} in blocks of {self.size}")
        context.offer(self, None)
        body = self.in_blocks(product, nest, context.machine or Machine(), Fresh(ir))
        return with_unique_names(ir.with_body(in_nest(nest[:-2], body)))

    def product(self, nest: list[For]) -> Product | None:
        """The long sum that the two innermost loops compute and store as it is."""
        if len(nest) < 2 or not all(f.parallel for f in nest):
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

    def in_blocks(self, product: Product, nest: list[For], machine: Machine, fresh: Fresh) -> Block:
        """The result, cleared and added to by each block of the sum; where threads have too little else, part by part."""
        rows, columns, depth = nest[-2].range, nest[-1].range, product.depth
        each = -(-machine.threads // known_steps(f.range for f in nest[:-2]))
        long = max(rows, columns, key=known_extent)
        part = self.part(long, each, fresh(f"{long.var}.part"))
        if part is not None:
            outer, long = part
            rows, columns = (long if r.var == long.var else r for r in (rows, columns))
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
        return body if part is None else (For(outer, body, parallel=True),)

    def part(self, r: Range, threads: int, name: str) -> tuple[Range, Range] | None:
        """A loop over parts of `r`, two for each thread if these are long enough, and the loop over a part; None for one part."""
        count = max(min(known(r.extent) // self.long, 2 * threads), min(known(r.extent) // SHORT, threads))
        if count < 2 or not isinstance(r.extent, int):
            return None
        size = -(-r.extent // count // SHORT) * SHORT
        outer = Range(name, 0, ceildiv(r.extent, size))
        start = r.lo + var(name) * size
        return outer, r.with_(lo=start, hi=minimum(start + size, r.hi, {name: (0, outer.hi - 1)}))


def is_settled(table: Accesses, a: Access) -> bool:
    """Whether an operand will lie as it is read in any case, or may not be read everywhere."""
    return table.roles[a.buffer] not in ("in", "inout") or a.masked
