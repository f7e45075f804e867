"""Fold constant factors of a contraction's result into its weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from compiler.analysis.contraction_nodes import operand_positions
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Reduction, primitive_of
from compiler.ir.interpret.graph import interpret
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources, is_widened

MAX_SCALE_EXPONENT = 64
"""Largest absolute binary exponent of a factor that is folded: keeps weights far from the ends of f32's range."""


@register
@dataclass(frozen=True)
class FoldScale(GraphPass):
    """Fold a constant factor per channel, as of a batch norm, into the weights of the contraction before it.

    %y = conv %x, %w   %b = add %y, %c   %z = mul %b, %s   ->   %y = conv %x, %w * %s   %z = add %y, %c * %s

    All but %x must be constant, and nothing else may read %y or %b.  Reduced floats are excluded, because their weights
    would be rounded again, weights that are computed from fewer bytes (by a cast), and factors that could take weights
    out of the range of their type.
    """

    name = "fold-scale"

    def run(self, ir: Graph, context: Context) -> Graph:
        constants = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            scaled = self.fold_into_weights(ir, n, constants)
            if scaled is not None and not _is_safe_factor(n.operands[1]):
                context.missed(self, "factor out of safe range", n)
            elif scaled is not None and context.may_apply(self, "factor folded into weights", n):
                new[n] = scaled.with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)

    def fold_into_weights(self, graph: Graph, n: Node, constants: Mapping[Node, Collection[Node]]) -> Node | None:
        """Return `n` with its factor folded into the weights, or None if the pattern does not match."""
        if (
            primitive_of(n) != "mul"
            or n.operands[1] not in constants
            or n.dtype.is_reduced_float
            or not n.dtype.is_float
        ):
            return None
        inner, factor = n.operands
        shift = inner.operands[1] if primitive_of(inner) == "add" and inner.operands[1] in constants else None
        product = inner if shift is None else inner.operands[0]
        path = (product,) if shift is None else (product, inner)
        if any(len(graph.users[p]) != 1 or p in graph.outputs or p.type != n.type for p in path):
            return None
        channel_dim = _weight_channel_dim(product, factor) if isinstance(product.structure, Reduction) else None
        if channel_dim is None or product.operands[1] not in constants or product.operands[1].dtype != n.dtype:
            return None
        x, weights = product.operands
        if is_widened(weights, constants[weights]):
            return None
        shape: tuple[Dim, ...] = tuple(factor.type.numel if k == channel_dim else 1 for k in range(weights.type.rank))
        scaled_product = product.op(x, ops.mul(weights, ops.reshape(factor, shape=shape)), **product.attrs)
        return scaled_product if shift is None else ops.add(scaled_product, ops.mul(shift, factor))


def _is_safe_factor(factor: Node) -> bool:
    """Return True if every element of constant `factor` is 0 or has an exponent within `MAX_SCALE_EXPONENT`."""
    (value,) = interpret(Graph((), (factor,)), ())
    exponents = torch.frexp(value)[1].abs()
    return bool((value.isfinite() & ((value == 0) | (exponents <= MAX_SCALE_EXPONENT))).all())


def _weight_channel_dim(n: Node, factor: Node) -> int | None:
    """Return the weight dimension that matches the one result dimension along which `factor` varies, or None."""
    s = n.structure
    varying = [n.type.rank - factor.type.rank + k for k, e in enumerate(factor.shape) if e != 1]
    if not isinstance(s, Reduction) or s.combine != "add" or len(n.operands) != 2 or len(varying) != 1:
        return None
    _, weight_index = operand_positions(n)
    channel = var(f"i{varying[0]}")
    matching = (k for k, d in enumerate(weight_index) if d == channel and n.operands[1].shape[k] == factor.type.numel)
    return next(matching, None)
