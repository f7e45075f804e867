"""Widen operands of contractions once, where the target would convert them for every product."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.contraction_nodes import matching_shape, mixed_contractions, with_sum_dtype
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources


@register
@dataclass(frozen=True)
class WidenOperands(GraphPass):
    """Compute the operands of a contraction in the dtype of its sums, if the target does not multiply the narrow one.

    %y = matmul %x, %w   ->   %a = cast %x {dtype=f32}  %s = matmul %a, %w {dtype=f32}  %y = cast %s {dtype=f16}

    Each element of an operand is part of many products.  Constants stay narrow: fewer bytes are read, and their conversion takes
    all lanes at once.
    """

    name = "widen-operands"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        constants = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            total = n.dtype.compute
            narrow = [o for o in n.operands if o.dtype.is_reduced_float and o not in constants]
            if narrow and total.is_float and not matching_shape(n.operands, total, context.matrix_shapes):
                wide = [ops.cast(o, dtype=total, loc=n.loc) if o in narrow else o for o in n.operands]
                new[n] = ops.as_dtype(with_sum_dtype(n, wide, total), n.dtype).with_name(n.name).with_loc(n.loc)
                context.applied(self, f"{narrow[0].dtype} operands computed in {total}", n)
        return ir.replace_nodes(new)
