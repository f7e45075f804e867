"""Loops whose extents depend on the loops around them, with the extents that they have in the middle of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.cost.tile_strides import trip_count_hint
from compiler.ir.symbolic.index_expr import substitute, variables
from compiler.ir.tile.kernel import Block, For, Kernel, Range, Reduce, Stmt, dim_hint, stmt_ranges, walk

Middles = Mapping[str, int]
"""The index of the middle iteration of each loop around a statement."""


def with_mean_extents(kernel: Kernel) -> Kernel:
    """Return `kernel` with constant extents, for estimates: those of the middle iterations of outer loops, rests of 0 left out.

    for %i in 0..16 { for %k in 0..min(15, %i + 1) { ... } }   ->   for %i in 0..16 { for %k in 0..9 { ... } }

    Extents that grow or shrink linearly have their mean.
    """
    if not any(variables(r.extent) for s in walk(kernel.body) for r in stmt_ranges(s)):
        return kernel
    return kernel.with_body(_with_mean_extents(kernel.body, {}))


def _with_mean_extents(body: Block, middles: Middles) -> Block:
    result: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            r, inner = _mean(s.range, middles)
            if r.extent != 0:
                result.append(replace(s, range=r, body=_with_mean_extents(s.body, inner)))
        elif isinstance(s, Reduce):
            ranges, inner = [], middles
            for own in s.ranges:
                r, inner = _mean(own, inner)
                ranges.append(r)
            result.append(replace(s, ranges=tuple(ranges), body=_with_mean_extents(s.body, inner)))
        else:
            result.append(s)
    return tuple(result)


def _mean(r: Range, middles: Middles) -> tuple[Range, Middles]:
    """Return a loop with its extent in the middle iterations of outer loops, and the middles for what is inside."""
    if variables(r.extent):
        r = r.with_(hi=r.lo + max(0, dim_hint(substitute(r.extent, middles))))
    return r, {**middles, r.var: dim_hint(substitute(r.lo, middles)) + trip_count_hint(r) // 2 * r.tile}
