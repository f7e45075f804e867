"""Operand caching: copy the box of a buffer that loops read to a local buffer, and read the copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.errors import TransformError
from compiler.ir import scalar
from compiler.ir.scalar import Expr, Load
from compiler.ir.symbolic.index_expr import Bounds, Dim, interval, substitute, var, variables
from compiler.ir.tile.kernel import Block, For, Local, Range, Store, map_exprs, stored_buffers
from compiler.ir.tile.loop_nest import wrap_in_nest
from compiler.ir.types import TensorType


def cache_operand(loop: For, load: Load, dims: Sequence[Range], name: str, bounds: Bounds) -> Block:
    """Copy what `load` reads inside `loop` before it, to local buffer `name` with one dimension per range of `dims`.

    for %i { for %j { reduce %r { x[%i, %r] * k[%j, %r] } } }       load k[%j, %r], dims %r, %j
    ->  local %name  for %r { for %j { store k[%j, %r], %name[%r, %j] } }
        for %i { for %j { reduce %r { x[%i, %r] * %name[%r, %j] } } }

    `bounds` are those of the loops around `loop`.  TransformError if `loop` stores to the buffer, the load is masked (the
    copy would read out of bounds), or the box depends on the loop itself.
    """
    if load.mask is not None:
        raise TransformError(f"the load of %{load.buffer} is masked")
    if load.buffer in stored_buffers((loop,)):
        raise TransformError(f"%{load.buffer} is stored to in the loop over %{loop.range.var}")
    own = {r.var for r in dims}
    if loop.range.var in own or loop.range.var in {v for d in load.index for v in variables(d)}:
        raise TransformError(f"what is read of %{load.buffer} depends on %{loop.range.var}")
    rename = {r.var: f"{name}.{r.var}" for r in dims}
    index_map: dict[str, Dim] = {v: var(n) for v, n in rename.items()}
    source = replace(load, index=tuple(substitute(d, index_map) for d in load.index))
    fill = Store(name, tuple(var(rename[r.var]) - r.lo for r in dims), source)
    copy = wrap_in_nest([Range(rename[r.var], r.lo, r.hi) for r in dims], (fill,))
    shape = tuple(max_extent(r.extent, bounds) for r in dims)
    read = Load(load.dtype, name, tuple(var(r.var) - r.lo for r in dims))

    def use_copy(e: Expr) -> Expr:
        return read if isinstance(e, Load) and (e.buffer, e.index) == (load.buffer, load.index) else e

    body = map_exprs(loop.body, lambda e: scalar.transform(e, use_copy))
    return (Local(name, TensorType(load.dtype, shape)), *copy, replace(loop, body=body))


def max_extent(d: Dim, bounds: Bounds) -> Dim:
    """Return `d`, or its upper bound if it depends on loops."""
    limits = interval(d, bounds) if variables(d) else None
    return limits[1] if limits else d
