"""Make one loop of nested ones that walk memory in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.index import Dim, interval, substitute, var, variables
from compiler.ir.linear import step
from compiler.ir.tile import For, Kernel, Range
from compiler.passes.access import Accesses, contraction, in_nest, nested_fors
from compiler.passes.base import Context, TilePass, register
from compiler.passes.rename import substitute_indices


@register
@dataclass(frozen=True)
class Collapse(TilePass):
    """parallel %i in 0..32 { parallel %j in 0..7 { f(%x[%i, %j]) } }  ->  parallel %i in 0..224 { f(%x[%i // 7, %i % 7]) }

    Only where every address stays linear in the joint index, so that lanes run across the end of a row, and blocks of a
    contraction's rows across the end of an image.  Rows of at least `enough` elements fill the lanes by themselves; of open
    length they must have as many in any case.
    """

    name = "collapse"
    exact = True
    enough: int = 512

    def run(self, ir: Kernel, context: Context) -> Kernel:
        nest = nested_fors(ir.body)
        inside = [s for f in nest[-1:] for s in f.body]
        plain = all(
            contraction(s) if isinstance(s, tile.Reduce) else not isinstance(s, (tile.Local, For)) for s in inside
        )
        if not plain or not all(f.parallel for f in nest):
            return ir
        for k in range(len(nest) - 1, 0, -1):
            nest = nested_fors(ir.body)
            joined = None if self.long(nest[k].range) else self.join(context.accesses(ir), nest, k)
            if joined is not None:
                context.applied(self, f"%{nest[k - 1].range.var} and %{nest[k].range.var} are one loop")
                ir = joined
        return ir

    def long(self, r: Range) -> bool:
        least = interval(r.extent, {})
        return least is None or least[0] >= self.enough

    def join(self, table: Accesses, nest: list[For], k: int) -> Kernel | None:
        """The kernel with loop `k` and the one around it as one; None where some address would not be linear."""
        outer, inner = nest[k - 1].range, nest[k].range
        least = interval(inner.hi, {})
        if outer.lo != 0 or inner.lo != 0 or variables(outer.hi) or least is None or least[0] < 1:
            return None
        v = var(outer.var)
        digits: dict[str, Dim] = {outer.var: v // inner.hi, inner.var: v % inner.hi}
        for a, _ in table.alike:  # most loops stay two, which shows before anything is written
            if step(table.types[a.buffer].offset(tuple(substitute(d, digits) for d in a.index)), outer.var) is None:
                return None
        body = tuple(substitute_indices(s, digits) for s in nest[-1].body)
        longer = replace(nest[k - 1], range=replace(outer, hi=outer.hi * inner.hi))
        joined = table.kernel.with_body(in_nest([*nest[: k - 1], longer, *nest[k + 1 :]], body))
        table = Accesses(joined)
        for a in table.all:
            offset = table.types[a.buffer].offset(a.index)
            if step(offset, outer.var) is None or any(n not in table.loops for n in variables(offset)):
                return None
        return joined
