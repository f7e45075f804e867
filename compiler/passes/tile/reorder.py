"""Order the loops around a contraction so that its larger operand is streamed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir.tile import Block, Kernel
from compiler.passes.access import Accesses, contraction, nested_fors
from compiler.passes.base import Context, TilePass, register


@register
@dataclass(frozen=True)
class Reorder(TilePass):
    """parallel i { parallel j { reduce k x[i, k] * w[j, k] } }  ->  parallel j { parallel i { ... } }

    Loops that the weights do not follow go inside those they do, so that a panel of weights stays in cache while the
    rows pass by.  The loops are independent of each other, so any order computes the same.
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
        first = [f for f in nest if table.follows(weights, f.range.var)]
        rest = [f for f in nest if not table.follows(weights, f.range.var)]
        if [*first, *rest] == nest:
            return ir
        body: Block = inside
        for f in reversed([*first, *rest]):
            body = (replace(f, body=body),)
        context.applied(self, f"loops ordered {', '.join('%' + f.range.var for f in (*first, *rest))}: %{weights.buffer} is streamed once")
        return ir.with_body(body)


