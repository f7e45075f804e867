"""A rule with a fault, for `tilewright bisect` to find (docs/bisect.md)."""

from compiler.ir import ops
from compiler.ir.graph.node import Node
from compiler.passes.pattern import Match, any_value, rewrite

x, y = any_value("x", dtype="float"), any_value("y", dtype="float")


@rewrite(ops.div(x, y))
def multiply_by_reciprocal(m: Match) -> Node:
    """x / y -> x * (1 / y), but the reciprocal was forgotten"""
    return ops.mul(m[x], m[y])
