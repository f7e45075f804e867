"""Fold widening casts of operands into contractions, which then read the narrow values."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.contraction_nodes import mixed_contractions, widening_shape, with_sum_dtype
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import is_cast, is_view
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources


@register
@dataclass(frozen=True)
class FoldCasts(GraphPass):
    """Let contractions widen their operands themselves.

    %a = cast %x {dtype=i32}  %b = cast %w {dtype=i32}  %y = matmul %a, %b   ->   %y = matmul %x, %w {dtype=i32}

    Applies where the target multiplies the narrow dtypes, or some between them and the sum, and to constants: the kernel reads
    fewer bytes.  The cast must keep every value.
    """

    name = "fold-casts"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        constants = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            narrow = [before_cast(o) for o in n.operands]
            if not widening_shape(narrow, n.dtype, context.matrix_shapes):
                narrow = [x if o in constants else o for x, o in zip(narrow, n.operands, strict=True)]
            dtypes = " and ".join(str(x.dtype) for x in narrow)
            changes = any(x is not o for x, o in zip(narrow, n.operands, strict=True))
            if changes and context.may_apply(self, f"reads {dtypes}", n):
                new[n] = with_sum_dtype(n, narrow, n.dtype).with_name(n.name)
        return ir.replace_nodes(new)


def before_cast(n: Node) -> Node:
    """Return `n` without a cast to a dtype that includes all values, also below views; `n` itself if there is none."""
    if is_view(n.structure, n) and len(n.operands) == 1:
        return n.with_operands((before_cast(n.operands[0]),))
    return n.operands[0] if is_cast(n) and n.dtype.includes(n.operands[0].dtype) else n
