"""Fold widening casts of operands into contractions, which then read the narrow values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from compiler.analysis.convolution_match import is_contraction_node
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Elementwise, is_view
from compiler.ir.scalar import PrimitiveCall, Ref
from compiler.ir.types import DType
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.canonicalize import trace
from compiler.passes.graph.fold import constant_sources
from compiler.target import MatrixShape, find_matrix_shape


@register
@dataclass(frozen=True)
class FoldCasts(GraphPass):
    """Let contractions widen their operands themselves.

    %a = cast %x {dtype=i32}  %b = cast %w {dtype=i32}  %y = matmul %a, %b   ->   %y = matmul %x, %w {dtype=i32}

    Applies where the target multiplies the narrow dtypes, and to constants: the kernel reads fewer bytes.  The cast must
    keep every value.
    """

    name = "fold-casts"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        constants = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            if not is_contraction_node(n) or "dtype" not in n.attrs:
                continue
            narrow = [before_cast(o) for o in n.operands]
            if not matching_shape(narrow, n.dtype, context.matrix_shapes):
                narrow = [x if o in constants else o for x, o in zip(narrow, n.operands, strict=True)]
            if any(x is not o for x, o in zip(narrow, n.operands, strict=True)):
                new[n] = n.op(*narrow, **{**n.attrs, "dtype": n.dtype}).with_name(n.name).with_loc(n.loc)
                context.applied(self, f"reads {' and '.join(str(x.dtype) for x in narrow)}", n)
        return ir.replace_nodes(new)


def before_cast(n: Node) -> Node:
    """Return `n` without a cast to a dtype that includes all values, also below views; `n` itself if there is none."""
    if is_view(n.structure, n) and len(n.operands) == 1:
        inner = before_cast(n.operands[0])
        return n if inner is n.operands[0] else n.op(inner, **n.attrs).with_loc(n.loc)
    if isinstance(n.structure, Elementwise) and len(n.operands) == 1:
        x = Ref(n.operands[0].dtype, "x")
        e = trace(n, (x,))
        if isinstance(e, PrimitiveCall) and e.primitive == "cast" and e.operands == (x,) and n.dtype.includes(x.dtype):
            return n.operands[0]
    return n


def matching_shape(operands: Sequence[Node], total: DType, shapes: Collection[MatrixShape]) -> MatrixShape | None:
    """Return how the target multiplies both `operands`, in either order, and adds in dtype `total`; None if it does not."""
    lhs, rhs = (o.dtype.name for o in operands)
    return find_matrix_shape(shapes, lhs, rhs, total.name) or find_matrix_shape(shapes, rhs, lhs, total.name)
