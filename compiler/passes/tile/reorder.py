"""Order the loops around a contraction so that its larger operand is streamed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.index import Dim, product, var
from compiler.ir.tile import Block, For, Kernel, Range, Reduce
from compiler.passes.access import Accesses, contraction, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.perf.machine import Machine


@register
@dataclass(frozen=True)
class Reorder(TilePass):
    """parallel i { parallel j { reduce k x[i, k] * w[j, k] } }
    ->  parallel i.block { parallel j { parallel i in 64*i.block..64*i.block + 64 { ... } } }

    As many rows as fit in half the second-level cache go inside the loops over the weights, so that a panel of weights stays in
    the first level while these rows pass by, and the rows stay in the second while the panels do (Goto and van de Geijn,
    2008).  The loops are independent of each other, so any order computes the same.
    """

    name = "reorder"
    exact = True

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = nested_fors(ir.body)
        if len(nest) < 2 or not all(f.parallel for f in nest):
            return ir
        inside = nest[-1].body
        sums = [s for s in inside if contraction(s)]
        if len(sums) != 1:
            return ir
        table = Accesses(ir)
        reads = [a for a in table.all if not a.is_store and a.stmt is sums[0]]
        weights = next((a for a in reads if table.roles[a.buffer] == "const"), None)
        if weights is None:
            last = nest[-1].range.var
            weights = next((a for a in reads if table.follows(a, last)), None)
        if weights is None:
            return ir
        machine = context.machine or Machine()
        first = [f for f in nest if table.follows(weights, f.range.var)]
        rest = [f for f in nest if not table.follows(weights, f.range.var)]
        depth = sums[0].ranges if isinstance(sums[0], Reduce) else ()
        row_bytes = int_or_1(product(r.extent for r in depth)) * table.types[weights.buffer].dtype.bytes
        outer, inner = self.fit(rest, row_bytes, machine.l2 // 2)
        order = [*outer, *first, *inner]
        if order == nest:
            return ir
        body: Block = inside
        for f in reversed(order):
            body = (replace(f, body=body),)
        names = ", ".join("%" + f.range.var for f in order)
        context.applied(
            self, f"loops ordered {names}: %{weights.buffer} is read once for every block of rows that stays in cache"
        )
        return ir.with_body(body)

    @staticmethod
    def fit(rows: list[For], row_bytes: int, cache: int) -> tuple[list[For], list[For]]:
        """Row loops split into those around the weights' and those inside, whose rows together fit in `cache` bytes."""
        inner: list[For] = []
        outer = list(rows)
        held = row_bytes
        while outer and held * int_or_1(outer[-1].range.extent) <= cache:
            inner.insert(0, outer.pop())
            held *= int_or_1(inner[0].range.extent)
        if inner or not outer:
            return outer, inner
        last = outer.pop()
        extent = int_or_1(last.range.extent)
        sizes = [n for n in range(16, extent, 8) if extent % n == 0 and n * row_bytes <= cache]
        if not sizes:
            return [], [*outer, last]
        block = Range(f"{last.range.var}.block", 0, extent // sizes[-1])
        start = var(block.var) * sizes[-1]
        part = last.range.with_(lo=start, hi=start + sizes[-1])
        return [*outer, replace(last, range=block)], [replace(last, range=part)]


def int_or_1(d: Dim) -> int:
    """A size, or 1 where it is not known."""
    return d if isinstance(d, int) else 1
