"""Loops that the interpreter may run on many indices at once, because their text shows that iterations share no element.

    for %i in 0..9 { store %x[%i, 0] * 2.0, %y[%i] }                  each iteration has elements of its own
    for %i in 0..9 { store %y[%i] + %x[%i + 1, 0], %y[%i + 1] }       one iteration reads what another writes

Passes ask a finer test (compiler.ir.tile.dependence).  The interpreter, which checks passes, must not depend on it.
"""

from __future__ import annotations

from compiler.ir.symbolic.index_expr import var, variables
from compiler.ir.tile.kernel import (
    Block,
    For,
    Let,
    Reduce,
    access_indices,
    async_copies,
    stmt_ranges,
    stored_buffers,
    walk,
)
from compiler.ir.tile.substitution import bound_names


def independent_loops(body: Block) -> list[For | Reduce]:
    """Return the untiled loops in `body` whose iterations may run in any order, and statement by statement."""
    return [s for s in walk(body) if isinstance(s, (For, Reduce)) and _has_independent_iterations(s)]


def _has_independent_iterations(loop: For | Reduce) -> bool:
    if any(r.tile > 1 for r in stmt_ranges(loop)) or async_copies(loop.body):
        return False
    loop_vars = {r.var for r in stmt_ranges(loop)}
    varying = loop_vars.union(s.name for s in loop.nested if isinstance(s, (Let, Reduce)))
    inner_ranges = (r for s in (loop, *loop.nested) for r in stmt_ranges(s))
    if any(varying & (variables(r.lo) | variables(r.hi)) for r in inner_ranges):
        return False  # iterations run different numbers of inner ones
    return all(_has_own_elements((loop,), b, v) for b in stored_buffers(loop.body) for v in loop_vars)


def _has_own_elements(body: Block, buffer: str, loop_var: str) -> bool:
    """Return True if along some axis every access is at `loop_var` plus the same offset, which no statement in `body` changes."""
    for axis in zip(*access_indices(body, buffer), strict=True):
        offsets = {d - var(loop_var) for d in axis}
        if len(offsets) == 1 and not variables(offsets.pop()) & bound_names(body):
            return True
    return False
