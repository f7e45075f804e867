"""Pad the channels that a contraction adds over to whole groups of a dot product."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from compiler.analysis.contraction_nodes import mixed_contractions, operand_positions, widening_shape
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.symbolic.index_expr import var
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources, constant_values


@register
@dataclass(frozen=True)
class PadReductions(GraphPass):
    """Add zeros to both operands of a contraction, so that its channels are a multiple of those that the target adds at once.

    %y = conv %x, %w   ->   %a = pad %x   %b = pad %w   %y = conv %a, %b         3 channels of u8 become 4

    The target multiplies the dtypes of the operands.  Sums are the same: the padding of constants is zero.
    """

    name = "pad-reductions"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        constants, new = constant_sources(ir), dict[Node, Node]()
        for n in mixed_contractions(ir):
            dims, found = channel_dims(n), widening_shape(n.operands, n.dtype.compute, context.matrix_shapes)
            if dims is None or found is None or n.operands[1] not in constants:
                continue
            shape, _ = found
            if shape.m != 1:
                continue
            extent = n.operands[0].shape[dims[0]]
            missing = -extent % shape.k if isinstance(extent, int) else 0
            if missing and context.may_apply(self, f"{extent} channels padded to {extent + missing}", n):
                x, w = n.operands
                weights = pad_end(w, dims[1], missing)
                new[n] = n.with_operands((pad_end(x, dims[0], missing), constant_values([weights])[weights]))
        return ir.replace_nodes(new)


def channel_dims(n: Node) -> tuple[int, int] | None:
    """Return the dimension of each operand of a contraction that its first sum alone runs over, or None."""
    if n.attrs.get("groups", 1) != 1:
        return None
    dims = [[k for k, d in enumerate(p) if d == var("r0")] for p in operand_positions(n)]
    return (dims[0][0], dims[1][0]) if all(len(d) == 1 for d in dims) else None


def pad_end(x: Node, dim: int, count: int) -> Node:
    """Add `count` zeros after the end of dimension `dim`, or more padding if `x` is padded."""
    is_padded = x.op is ops.pad and isinstance(x.attrs["after"][dim], int) and isfinite(x.attrs["value"])
    zeros = (0,) * x.type.rank
    before, after = (x.attrs["before"], x.attrs["after"]) if is_padded else (zeros, zeros)
    value = x.attrs["value"] if is_padded else 0
    after = (*after[:dim], after[dim] + count, *after[dim + 1 :])
    return ops.pad(x.operands[0] if is_padded else x, before=before, after=after, value=value)
