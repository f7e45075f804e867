"""Widen operands of contractions once, where the target would convert them for every product."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.contraction_nodes import mixed_contractions, widening_shape, with_sum_dtype
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import IndexMap, is_permutation
from compiler.ir.types import DType
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources


@register
@dataclass(frozen=True)
class WidenOperands(GraphPass):
    """Compute the operands of a contraction in a dtype that the target multiplies, or in that of its sums.

    %y = matmul %x, %w   ->   %a = cast %x {dtype=f32}  %s = matmul %a, %w {dtype=f32}  %y = cast %s {dtype=f16}

    Bytes become i16 where the target adds products of i16 in i32.  Each element of an operand is part of many products.
    Constants stay narrow: fewer bytes are read, and their conversion takes all lanes at once.
    """

    name = "widen-operands"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        constants = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            total = n.dtype.compute
            shape = widening_shape(n.operands, total, context.matrix_shapes)
            dtypes = shape[1] if shape else tuple(total if o.dtype.is_reduced_float else o.dtype for o in n.operands)
            wide = [o if o in constants else widened(o, d) for o, d in zip(n.operands, dtypes, strict=True)]
            changed = [(o.dtype, w.dtype) for o, w in zip(n.operands, wide, strict=True) if o is not w]
            if changed and context.may_apply(self, f"{changed[0][0]} operands computed in {changed[0][1]}", n):
                new[n] = ops.as_dtype(with_sum_dtype(n, wide, total), n.dtype).with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)


def widened(x: Node, dtype: DType) -> Node:
    """Return `x` in a wider dtype, converted before what only arranges or pads it; `x` itself if it has the dtype."""
    if x.dtype == dtype:
        return x
    if is_permutation(x) or (isinstance(x.structure, IndexMap) and x.structure.operand_offsets):
        return x.with_operands(tuple(widened(o, dtype) for o in x.operands))
    return ops.cast(x, dtype=dtype, loc=x.loc)
