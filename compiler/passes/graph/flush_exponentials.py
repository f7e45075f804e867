"""Exponentials of a softmax that are too small to count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from compiler.analysis.plain_reductions import reduced_dims
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import IndexMap, Reduction, primitive_of
from compiler.ir.ops import exp_ftz
from compiler.passes.base import Context, GraphPass, register

Users = Mapping[Node, tuple[Node, ...]]


@register
@dataclass(frozen=True)
class FlushExponentials(GraphPass):
    """Flush subnormal exponentials of differences from a maximum to zero, where they are only summed.

    %m = amax %x {dims=[1]}  %d = sub %x, %m  %e = exp %d      %s = sum %e {dims=[1]}  %p = div %e, %s  %y = matmul %p, %v
      ->
    %m = amax %x {dims=[1]}  %d = sub %x, %m  %e = exp_ftz %d  %s = sum %e {dims=[1]}  %p = div %e, %s  %y = matmul %p, %v

    The largest exponential of a row is 1, beside which subnormal numbers vanish in a sum.  Some cores take over a hundred cycles
    for an instruction that reads or writes one.  Probabilities that are a result themselves stay exact.
    """

    name = "flush-exponentials"

    def run(self, ir: Graph, context: Context) -> Graph:
        users, outputs, new = ir.users, frozenset(ir.outputs), dict[Node, Node]()
        for n in ir.nodes:
            if primitive_of(n) != "exp" or not is_difference_from_max(n.operands[0]):
                continue
            if only_summed(n, users, outputs) and context.may_apply(self, "small exponentials flushed", n):
                new[n] = exp_ftz(n.operands[0], loc=n.loc).with_name(n.name)
        return ir.replace_nodes(new)


def is_difference_from_max(n: Node) -> bool:
    """Return True if `n` is x minus the maximum of its row, where 0 may stand for a maximum of -inf."""
    if primitive_of(n) != "sub":
        return False
    x, top = n.operands
    if primitive_of(top) == "where":
        condition, zero, largest = top.operands
        if not is_minus_infinity(condition, largest) or scalar_value(zero) != 0:
            return False
        top = largest
    is_max = isinstance(top.structure, Reduction) and top.structure.combine == "max" and top.operands == (x,)
    return is_max and bool(reduced_dims(top)) and top.type.rank == x.type.rank  # else rows get maxima of others


def is_minus_infinity(condition: Node, x: Node) -> bool:
    """Return True if `condition` holds where `x` is -inf."""
    return (
        primitive_of(condition) == "eq" and condition.operands[0] is x and scalar_value(condition.operands[1]) == -inf
    )


def only_summed(n: Node, users: Users, outputs: frozenset[Node]) -> bool:
    """Return True if all readers of `n`, or of what is proportional to it, add its elements."""
    if n in outputs:
        return False
    return all(
        (isinstance(u.structure, Reduction) and u.structure.combine == "add")
        or (is_proportional(u, n) and only_summed(u, users, outputs))
        for u in users[n]
    )


def is_proportional(n: Node, x: Node) -> bool:
    """Return True if `n` moves the elements of `x`, scales or converts them."""
    if isinstance(n.structure, IndexMap):
        return len(n.operands) == 1
    primitive = primitive_of(n)
    if primitive == "div":
        return n.operands[0] is x is not n.operands[1]
    return primitive == "mul" or (primitive == "cast" and n.dtype.is_float)
