"""Loop interchange: another order of the loops of a perfect nest."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import TransformError
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile.kernel import Block, For
from compiler.ir.tile.loop_nest import wrap_in_nest


def interchange(order: Sequence[For], body: Block) -> Block:
    """Return the loops of a perfect nest in another order around `body`.

    parallel %i { parallel %j { A } }  ->  parallel %j { parallel %i { A } }

    TransformError if a loop is serial, or the bounds of one depend on a loop that is now inside of it.
    """
    for k, f in enumerate(order):
        if not f.parallel:
            raise TransformError(f"the order of the steps of %{f.range.var} matters")
        inside = {g.range.var for g in order[k:]} & (variables(f.range.lo) | variables(f.range.hi))
        if inside:
            raise TransformError(f"the bounds of %{f.range.var} depend on %{min(inside)}")
    return wrap_in_nest(order, body)
