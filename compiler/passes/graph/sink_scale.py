"""Scales of narrow weights are applied to sums."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compiler.analysis.contraction_nodes import mixed_contractions, operand_positions, with_sum_dtype
from compiler.analysis.quantized_value import QuantizedValue, is_known, match_quantized_values, place
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.types import f64
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import is_known_finite


@register
@dataclass(frozen=True)
class SinkScale(GraphPass):
    """Multiply the sums of a contraction by the scale of its weights, instead of every weight.

    %w = mul (cast %q {dtype=f32}), %s   %y = matmul %x, %w   ->   %p = matmul %x, (cast %q {dtype=f32})   %y = mul %p, %s

    Applies to constant weights of 8 bits, whose scale does not vary along the sum: the kernel reads them as they are.
    Sums are of f32 and are rounded once more; those of f64 stay.
    """

    name = "sink-scale"

    def run(self, ir: Graph, context: Context) -> Graph:
        found = match_quantized_values(ir)
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            if not n.dtype.is_float or n.dtype == f64:
                continue
            for k, position in enumerate(operand_positions(n)):
                m = found[n.operands[k]]
                if not isinstance(m, QuantizedValue) or m.scale is None:
                    continue
                if not (is_known(m.codes) and is_known_finite(m.scale)):
                    continue
                scale = place(m.scale, position, n.shape)
                if scale is None:
                    context.missed(self, "the scale varies along the sum", n)
                    continue
                if not context.may_apply(self, "the scale follows the sum", n):
                    continue
                wide = n.dtype.compute
                weights = replace(m, scale=None).dequantize(wide)
                operands = [weights if j == k else o for j, o in enumerate(n.operands)]
                scaled = ops.mul(with_sum_dtype(n, operands, wide), ops.as_dtype(scale, wide))
                new[n] = ops.as_dtype(scaled, n.dtype).with_name(n.name).with_loc(n.loc)
                break
        return ir.replace_nodes(new)
