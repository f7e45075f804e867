"""Loop collapsing: one loop for two perfectly nested ones (OpenMP `collapse`)."""

from __future__ import annotations

from dataclasses import replace

from compiler.errors import TransformError
from compiler.ir.symbolic.index_expr import Dim, interval, var, variables
from compiler.ir.tile.kernel import For


def collapse(outer: For, inner: For) -> tuple[For, dict[str, Dim]]:
    """Return one loop for two, and the index expressions that replace their variables.

    parallel %i in 0..32 { parallel %j in 0..7 { A(%i, %j) } }  ->  parallel %i in 0..224 { A(%i // 7, %i % 7) }

    TransformError if only one is parallel, one does not start at 0, or the inner extent depends on loops or may be 0.
    """
    o, i = outer.range, inner.range
    bounds = interval(i.hi, {})
    if outer.parallel != inner.parallel:
        raise TransformError(f"only one of the loops %{o.var} and %{i.var} is parallel")
    if o.lo != 0 or i.lo != 0:
        raise TransformError(f"%{o.var if o.lo != 0 else i.var} does not start at 0")
    if variables(o.hi) or bounds is None or bounds[0] < 1:
        raise TransformError(f"the extent of %{i.var} is not a positive number of the whole nest")
    index = var(o.var)
    return replace(outer, range=replace(o, hi=o.hi * i.hi)), {o.var: index // i.hi, i.var: index % i.hi}
