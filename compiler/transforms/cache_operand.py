"""Operand caching: compute what loops use again and again into a local buffer, and read that."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import TransformError
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load, Ref
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval, var, variables
from compiler.ir.tile.kernel import (
    Block,
    For,
    Let,
    Local,
    Range,
    Stmt,
    Store,
    expand_stmts,
    map_exprs,
    stored_buffers,
    walk,
)
from compiler.ir.tile.loop_nest import wrap_in_nest
from compiler.ir.tile.substitution import bound_names, substitute_indices
from compiler.ir.types import TensorType


def cache_operand(body: Block, operand: Expr, dims: Sequence[Range], name: str, bounds: Bounds) -> Block:
    """Compute `operand` for all steps of the loops in `body` before them, in local buffer `name` with one dimension per range of `dims`.

    for %i { for %j { reduce %r { x[%i, %r] * k[%j, %r] } } }       operand k[%j, %r], dims %r, %j
    ->  local %name  for %r { for %j { store k[%j, %r], %name[%r, %j] } }
        for %i { for %j { reduce %r { x[%i, %r] * %name[%r, %j] } } }

    `bounds` are those of the loops around `body`.  Values that `body` binds to expressions are computed again in the copy.
    TransformError if `body` stores to a buffer of the operand or binds another name in it, or a load is masked (the copy would
    read out of bounds).
    """
    value = with_inlined_values(operand, body)
    for load in value.loads:
        if load.mask is not None:
            raise TransformError(f"the load of %{load.buffer} is masked")
        if load.buffer in stored_buffers(body):
            raise TransformError(f"%{load.buffer} is stored to in the loops that read it")
    own = {r.var for r in dims}
    if bound := sorted(value.used_names & bound_names(body) - own):
        raise TransformError(f"the operand depends on %{bound[0]}, bound in the loops that read it")
    rename = {r.var: f"{name}.{r.var}" for r in dims}
    fill = Store(name, tuple(var(r.var) - r.lo for r in dims), value)
    fill = substitute_indices(fill, {v: var(n) for v, n in rename.items()})
    copy = wrap_in_nest([Range(rename[r.var], r.lo, r.hi) for r in dims], (fill,))
    shape = tuple(max_extent(r.extent, bounds) for r in dims)
    read = Load(operand.dtype, name, tuple(var(r.var) - r.lo for r in dims))
    body = map_exprs(body, lambda e: scalar.transform(e, lambda x: read if x.is_structurally_equal(operand) else x))
    return (Local(name, TensorType(operand.dtype, shape)), *copy, *body)


def cache_operand_at(
    body: Block, loop: Range, operand: Expr, dims: Sequence[Range], name: str, bounds: Bounds
) -> Block:
    """Return `body` with `cache_operand` applied to the loop over `loop`, wherever that is in it."""

    def rule(stmt: Stmt) -> Block:
        if not isinstance(stmt, For) or stmt.range.var != loop.var:
            return (stmt,)
        return cache_operand((stmt,), operand, dims, name, bounds)

    return expand_stmts(body, rule)


def with_inlined_values(e: Expr, body: Block) -> Expr:
    """Return `e`, part of `body`, with the values that statements of `body` bind to expressions replaced by those."""
    values = {s.name: s.value for s in walk(body) if isinstance(s, Let)}

    def rule(x: Expr) -> Expr:
        return scalar.transform(values[x.name], rule) if isinstance(x, Ref) and x.name in values else x

    return scalar.transform(e, rule)


def max_extent(d: Dim, bounds: Bounds) -> Dim:
    """Return `d`, or its upper bound if it depends on loops."""
    limits = interval(d, bounds) if variables(d) else None
    return limits[1] if limits else d
