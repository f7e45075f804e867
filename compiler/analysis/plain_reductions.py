"""Reductions that combine the elements of one operand as they are."""

from __future__ import annotations

from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Reduction, index_vars
from compiler.ir.scalar import Ref


def is_plain_reduction(n: Node) -> bool:
    """Return True if `n` combines elements of its only operand, unchanged, in their dtype and at every step."""
    s = n.structure
    if not isinstance(s, Reduction) or len(n.operands) != 1 or isinstance(n.result_type, tuple):
        return False
    x, domain = n.operands[0], s.domain(n)
    element = Ref(x.dtype, "x")
    has_guards = bool(domain.guards(index_vars("i", n.type.rank), index_vars("r", len(domain.extents))))
    return x.dtype == n.dtype and s.fn(element) is element and not has_guards
