"""Chains of functions of one value and of constant scalars, such as those that quantize."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import Elementwise, elementwise_expr, highest, lowest
from compiler.ir.scalar import Const, Expr, Number, PrimitiveCall, Ref

STEPS = frozenset({"floor", "ceil", "trunc", "round", "rem", "copysign", "bitcast"})
"""Primitives on floats that jump from one value to another."""


def scalar_chain(n: Node) -> list[Node]:
    """Return `n` and the elementwise nodes below it, each a function of one value of its shape and of constant scalars."""
    chain: list[Node] = []
    while isinstance(n.structure, Elementwise) and (below := varying_operand(n)) is not None:
        chain.append(n)
        n = below
    return chain


def varying_operand(n: Node) -> Node | None:
    """Return the only operand that is not a scalar constant, if it has the shape of `n`."""
    varying = [o for o in n.operands if o.type.rank or scalar_value(o) is None]
    return varying[0] if len(varying) == 1 and varying[0].shape == n.shape else None


def apply_chain(chain: Sequence[Node], x: Node) -> Node:
    """Apply a chain to `x` instead of the value below it."""
    for n in reversed(chain):
        below = varying_operand(n)
        x = n.with_operands(tuple(x if o is below else o for o in n.operands))
    return x


def is_increasing_chain(chain: Sequence[Node]) -> bool:
    """Return True if a chain never decreases: its functions do not, and none leaves the range of its integer dtype."""
    below = varying_operand(chain[-1])
    assert below is not None
    bounds: Sequence[Number] = (lowest(below.dtype), highest(below.dtype))
    for n in reversed(chain):
        if not is_increasing(n):
            return False
        bounds = [without_wrapping(n, bound) for bound in bounds]
        if n.dtype.is_integer and not all(lowest(n.dtype) <= b <= highest(n.dtype) for b in bounds):
            return False
    return True


def without_wrapping(n: Node, value: Number) -> Number:
    """Return an increasing function of `value`, in exact integers."""
    e = elementwise_expr(n)
    (scalar, *_) = [s for o in n.operands if (s := scalar_value(o)) is not None] or [0]
    match e.primitive if isinstance(e, PrimitiveCall) else "":
        case "add":
            return value + scalar
        case "sub":
            return value - scalar
        case "mul":
            return value * scalar if scalar else 0
        case "max":
            return max(value, scalar)
        case "min":
            return min(value, scalar)
    return value


def is_increasing(n: Node) -> bool:
    """Return True if a function of one value and constants never decreases while integers do not wrap."""
    e = elementwise_expr(n)
    if isinstance(e, Ref):
        return True
    if not isinstance(e, PrimitiveCall) or any(a.args for a in e.operands):
        return False
    scalars = [value for o in n.operands if (value := scalar_value(o)) is not None]
    if e.primitive == "mul":
        return len(scalars) == 1 and scalars[0] >= 0
    if e.primitive == "sub":
        return scalar_value(n.operands[0]) is None
    return e.primitive in ("add", "cast", "max", "min", "round")


def is_clamp(n: Node) -> bool:
    """Return True if `n` is one value of its shape, bounded by constant scalars."""
    calls = [e for e in elementwise_expr(n).subexprs if isinstance(e, PrimitiveCall)]
    return bool(calls) and varying_operand(n) is not None and all(c.primitive in ("max", "min") for c in calls)


def is_continuous(e: Expr) -> bool:
    """Return True if an expression computes floats from floats, without steps or comparisons of what it computes."""
    calls = (x for x in e.subexprs if isinstance(x, PrimitiveCall))
    return all(
        c.dtype.is_float
        and c.primitive not in STEPS
        and all(a.dtype.is_float or isinstance(a, Ref | Const) for a in c.operands)
        for c in calls
    )
