"""Repetitions follow what is computed from the repeated value alone."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.plain_reductions import reduced_dims
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Elementwise, IndexMap, Leaf, index_vars, is_view
from compiler.ir.types import broadcast_index
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class SinkExpand(GraphPass):
    """Compute elementwise ops and reductions before elements are repeated along a dimension, so that each is computed once.

    %e = expand %x {shape=[80, 64]}  %s = sum %e {dims=[1], keepdim=true}  %y = div %e, %s      %x: f32[1, 64]
      ->
    %s = sum %x {dims=[1], keepdim=true}  %d = div %x, %s  %y = expand %d {shape=[80, 64]}

    A reduction over the repeated dimension itself stays.
    """

    name = "sink-expand"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        once: dict[Node, Node] = {}
        for n in ir.nodes:
            if (value := computed_once(n, once)) is not None:
                once[n] = value
        new: dict[Node, Node] = {}
        for n in (n for n in once if not isinstance(n.structure, IndexMap)):
            is_repeated_here = n in ir.outputs or any(u not in once for u in ir.users[n])
            if is_repeated_here and context.may_apply(
                self, f"%{n.name or n.op.name} is repeated when it is computed", n
            ):
                new[n] = ops.expand(once[n], shape=n.shape).with_name(n.name)
        return ir.replace_nodes(new)


def computed_once(n: Node, once: dict[Node, Node]) -> Node | None:
    """Return `n` with 1 for each dimension that only repeats its elements, or None if there is none.

    `once` has these values for the nodes before.
    """
    if isinstance(n.result_type, tuple) or isinstance(n.structure, Leaf):
        return None
    if isinstance(n.structure, IndexMap):
        return without_repetitions(n)
    if not any(o in once for o in n.operands):
        return None
    if isinstance(n.structure, Elementwise):
        value = n.op(*(once.get(o, o) for o in n.operands), loc=n.loc, **n.attrs)
        return value if value.type.rank == n.type.rank and value.shape != n.shape else None
    dims = reduced_dims(n)
    if not dims or any(once[n.operands[0]].shape[d] != n.operands[0].shape[d] for d in dims):
        return None
    return n.op(once[n.operands[0]], loc=n.loc, **n.attrs)


def without_repetitions(n: Node) -> Node | None:
    """Return the operand of a view that only repeats elements along dimensions of size 1, with as many dimensions, or None."""
    if not is_view(n.structure, n) or n.operands[0].type.rank > n.type.rank:
        return None
    assert isinstance(n.structure, IndexMap)
    (x,), index = n.operands, index_vars("i", n.type.rank)
    (read,) = n.structure.reads(n, index)
    shape = (1,) * (n.type.rank - x.type.rank) + x.shape
    repeats = shape != n.shape and all(a in (1, b) for a, b in zip(shape, n.shape, strict=True))
    if not repeats or read.position != broadcast_index(x.shape, index):
        return None
    return ops.reshape(x, shape=shape) if x.shape != shape else x
