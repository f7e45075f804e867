"""The constant factor that the scores of a softmax have in common, such as 1 / sqrt(d) in attention.

%m = reduce max %r { ...  %s = where(%seen, %c * 0.125, -inf)  store %s, %scores[%r]  yield %s }
->  %m = reduce max %r { ...  %s = where(%seen, %c, -inf)  store %s, %scores[%r]  yield %s },  0.125,  {scores}
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TypeGuard

from compiler.ir import scalar
from compiler.ir.scalar import Const, Expr, PrimitiveCall, Ref
from compiler.ir.tile.kernel import Let, Reduce, Stmt, Store
from compiler.ir.tile.uses import used_names


@dataclass(frozen=True)
class FactoredMax:
    """A maximum of scores that are divided by a positive `factor`, and the local buffers that hold such scores."""

    reduction: Reduce
    factor: float
    buffers: frozenset[str] = frozenset()


def split_factor(e: Expr) -> tuple[Expr, float]:
    """Return x and c of a product c * x with a positive constant, else the value and 1.

    The product may be masked: it is then chosen where a condition holds, -inf elsewhere, and x is masked alike.
    """
    if not isinstance(e, PrimitiveCall):
        return e, 1.0
    if e.primitive == "where" and isinstance(e.operands[2], Const) and e.operands[2].value == -inf:
        x, factor = split_factor(e.operands[1])
        return scalar.where(e.operands[0], x, e.operands[2]), factor
    if e.primitive == "mul":
        for x, c in (e.operands, e.operands[::-1]):
            if isinstance(c, Const) and isinstance(c.value, float) and c.value > 0 and isfinite(c.value):
                return x, c.value
    return e, 1.0


def factored_max(s: Reduce) -> FactoredMax:
    """Return the maximum of a row of scores without their common factor; with factor 1 where there is none, or other readers."""
    bound = next((t for t in s.body if isinstance(t, Let) and s.value == Ref(s.value.dtype, t.name)), None)
    value, factor = split_factor(bound.value if bound else s.value)
    if bound is None:
        return FactoredMax(replace(s, value=value), factor)
    buffers = frozenset(t.buffer for t in s.body if is_store_of(t, s.value))
    if any(bound.name in used_names(t) for t in s.body if t is not bound and not is_store_of(t, s.value)):
        return FactoredMax(s, 1.0)
    body = tuple(replace(bound, value=value) if t is bound else t for t in s.body)
    return FactoredMax(replace(s, body=body), factor, buffers)


def is_store_of(stmt: Stmt, value: Expr) -> TypeGuard[Store]:
    """Return True if a statement stores `value`."""
    return isinstance(stmt, Store) and stmt.value == value
