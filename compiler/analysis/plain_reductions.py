"""Reductions that combine the elements of one operand as they are."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.analysis.contraction_nodes import operand_positions
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


def reduced_dims(n: Node) -> Sequence[int]:
    """Return the dimensions of its operand that a plain reduction reduces, each as a whole, or none for any other node."""
    if not is_plain_reduction(n):
        return ()
    assert isinstance(n.structure, Reduction)
    i, r = index_vars("i", n.type.rank), index_vars("r", len(n.structure.domain(n).extents))
    position = operand_positions(n)[0]
    if any(d not in i and d not in r and d != 0 for d in position) or len(set(position)) < len(position):
        return ()
    return tuple(k for k, d in enumerate(position) if d in r)
