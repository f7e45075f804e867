"""Multiply f32 operands of contractions in a narrower dtype, where the user allows it."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis.contraction_nodes import matching_shape, mixed_contractions, with_sum_dtype
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.types import bf16, f32
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class ReducePrecision(GraphPass):
    """Round f32 operands of contractions to bf16; sums stay in f32.

    %y = matmul %x, %w   ->   %a = cast %x {dtype=bf16}  %b = cast %w {dtype=bf16}  %y = matmul %a, %b {dtype=f32}

    Applies where the target multiplies bf16.  Constants are rounded when the program is built.
    """

    name = "reduce-precision"

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            if n.dtype != f32 or any(o.dtype != f32 for o in n.operands):
                continue
            narrow = [ops.cast(o, dtype=bf16, loc=n.loc) for o in n.operands]
            if not matching_shape(narrow, f32, context.matrix_shapes):
                context.missed(self, "the target does not multiply bf16 in less time", n)
            elif context.may_apply(self, "operands rounded to bf16", n):
                new[n] = with_sum_dtype(n, narrow, f32).with_name(n.name)
        return ir.replace_nodes(new)
