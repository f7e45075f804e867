"""Elements of integer tensors that are computed from indices alone, such as those of `arange`."""

from __future__ import annotations

from compiler.ir import scalar
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import Elementwise, Generate, Position, elementwise_expr, is_view, through_view
from compiler.ir.scalar import Expr, Ref
from compiler.ir.symbolic.index_expr import Dim
from compiler.ir.types import broadcast_index


def index_element(n: Node, at: Position) -> Dim | None:
    """Return element `at` of `n` as an index expression; None if it depends on anything else than indices and constants."""
    value = _element(n, at)
    return None if value is None else scalar.as_index(value)


def _element(n: Node, at: Position) -> Expr | None:
    s, value = n.structure, scalar_value(n)
    if value is not None:
        return scalar.const(value, n.dtype)
    if isinstance(s, Generate):
        return s.fn(n, at)
    if is_view(s, n) and len(n.operands) == 1:
        return _element(*through_view(n, at, {}))
    if not isinstance(s, Elementwise):
        return None
    operands = {f"x{k}": _element(o, broadcast_index(o.shape, at)) for k, o in enumerate(n.operands)}

    def rule(e: Expr) -> Expr:
        return operands[e.name] or e if isinstance(e, Ref) else e

    return None if None in operands.values() else scalar.transform(elementwise_expr(n), rule)
