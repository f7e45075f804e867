"""Chains of functions of one value and of constant scalars, such as those that quantize."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import Elementwise, elementwise_expr
from compiler.ir.scalar import PrimitiveCall, Ref


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


def is_increasing(n: Node) -> bool:
    """Return True if a function of one value and constants never decreases."""
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
