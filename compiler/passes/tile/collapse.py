"""Make one loop of nested ones that walk memory in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.index import Dim, coefficient, var, variables
from compiler.ir.tile import Block, For, Kernel, Range
from compiler.passes.access import Accesses, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import substitute_indices


@register
@dataclass(frozen=True)
class Collapse(TilePass):
    """parallel %i in 0..32 { parallel %j in 0..7 { f(%x[%i, %j]) } }  ->  parallel %i in 0..224 { f(%x[%i // 7, %i % 7]) }

    Only where every address stays linear in the joint index, so that lanes run across the end of a row.  Rows of at least
    `enough` elements fill the lanes by themselves.
    """

    name = "collapse"
    exact = True
    enough: int = 512

    def run(self, ir: Kernel, context: Context) -> Kernel:
        while True:
            nest = nested_fors(ir.body)
            if len(nest) < 2 or not all(f.parallel for f in nest) or self.long(nest[-1].range):
                return ir
            if any(isinstance(s, (tile.Local, tile.Reduce, For)) for s in nest[-1].body):
                return ir
            joined = self.join(ir, nest)
            if joined is None:
                return ir
            context.applied(self, f"%{nest[-2].range.var} and %{nest[-1].range.var} are one loop")
            ir = joined

    def long(self, r: Range) -> bool:
        return not isinstance(r.extent, int) or r.extent >= self.enough

    def join(self, ir: Kernel, nest: list[For]) -> Kernel | None:
        """The two innermost loops as one; None where some address would not be linear."""
        outer, inner = nest[-2].range, nest[-1].range
        if (
            outer.lo != 0
            or inner.lo != 0
            or not isinstance(outer.hi, int)
            or not isinstance(inner.hi, int)
            or inner.hi < 1
        ):
            return None
        v = var(outer.var)
        digits: dict[str, Dim] = {outer.var: v // inner.hi, inner.var: v % inner.hi}
        body: Block = tuple(substitute_indices(s, digits) for s in nest[-1].body)
        for f in reversed(nest[:-1]):
            r = f.range if f is not nest[-2] else replace(f.range, hi=outer.hi * inner.hi)
            body = (replace(f, range=r, body=body),)
        joined = ir.with_body(body)
        table = Accesses(joined)
        for a in table.all:
            offset = table.types[a.buffer].offset(a.index)
            if coefficient(offset, outer.var) is None or any(n not in table.loops for n in variables(offset)):
                return None
        return joined
