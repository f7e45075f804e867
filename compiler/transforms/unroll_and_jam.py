"""Unroll-and-jam: several iterations of an outer loop in each step of the loops inside."""

from __future__ import annotations

from dataclasses import replace

from compiler.errors import TransformError
from compiler.ir.symbolic.index_expr import variables
from compiler.ir.tile import kernel as tile
from compiler.ir.tile.kernel import For


def unroll_and_jam(loop: For, factor: int, lanes: int = 0) -> For:
    """Take `factor` iterations of a loop at once, in vectors of `lanes` elements if that is not 0.

    parallel %i in 0..64 { for %k { A } }  ->  parallel %i in 0..64 tile 4 { for %k { A } }

    TransformError if the loop is serial, or the bounds of an inner loop depend on it.
    """
    v = loop.range.var
    if not loop.parallel:
        raise TransformError(f"the order of the steps of %{v} matters")
    for r in (r for s in tile.walk(loop.body) for r in tile.stmt_ranges(s)):
        if v in variables(r.lo) | variables(r.hi):
            raise TransformError(f"the bounds of %{r.var} depend on %{v}")
    return replace(loop, range=loop.range.with_(tile=factor, lanes=lanes))
