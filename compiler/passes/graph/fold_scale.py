"""Factors behind a product with weights, as part of the weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Elementwise, Reduction
from compiler.ir.interpret.graph import interpret
from compiler.ir.scalar import PrimitiveCall, Ref
from compiler.ir.symbolic.index_expr import Dim, var
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.canonicalize import trace
from compiler.passes.graph.fold import constant_sources

MAX_SCALE_EXPONENT = 64
"""The largest power of 2 in a factor, or a factor's inverse, that becomes part of weights."""


@register
@dataclass(frozen=True)
class FoldScale(GraphPass):
    """%y = conv %x, %w   %b = add %y, %c   %z = mul %b, %s   ->   %y = conv %x, %w * %s   %z = add %y, %c * %s

    A batch norm that follows a convolution multiplies every channel by a number; with constant weights it costs nothing then.
    Where all is constant but %x, and nothing else reads %y or %b.  Half types are left alone: their weights would be rounded again;
    so are factors that might take weights out of the range of their type.
    """

    name = "fold-scale"

    def run(self, ir: Graph, context: Context) -> Graph:
        constants = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            scaled = self.fold_into_weights(ir, n, constants)
            if scaled is not None and not _is_safe_factor(n.operands[1]):
                context.missed(self, "the factor is too large or too small for the weights", n)
            elif scaled is not None:
                new[n] = scaled.with_name(n.name).with_loc(n.loc)
                context.applied(self, "a factor became part of the weights", n)
        return ir.replace_nodes(new)

    def fold_into_weights(self, graph: Graph, n: Node, constants: Collection[Node]) -> Node | None:
        """`n` without its factor; None where it has none that could be part of weights."""
        if not _is_primitive(n, "mul") or n.operands[1] not in constants or n.dtype.is_half or not n.dtype.is_float:
            return None
        inner, factor = n.operands
        shift = inner.operands[1] if _is_primitive(inner, "add") and inner.operands[1] in constants else None
        product = inner if shift is None else inner.operands[0]
        path = (product,) if shift is None else (product, inner)
        if any(len(graph.users[p]) != 1 or p in graph.outputs or p.type != n.type for p in path):
            return None
        channel_dim = _weight_channel_dim(product, factor) if isinstance(product.structure, Reduction) else None
        if channel_dim is None or product.operands[1] not in constants or product.operands[1].dtype != n.dtype:
            return None
        x, weights = product.operands
        shape: tuple[Dim, ...] = tuple(factor.type.numel if k == channel_dim else 1 for k in range(weights.type.rank))
        scaled_product = product.op(x, ops.mul(weights, ops.reshape(factor, shape=shape)), **product.attrs)
        return scaled_product if shift is None else ops.add(scaled_product, ops.mul(shift, factor))


def _is_safe_factor(factor: Node) -> bool:
    """Whether every number of the constant `factor` is 0 or far from the ends of its type's range."""
    (value,) = interpret(Graph((), (factor,)), ())
    exponents = torch.frexp(value)[1].abs()
    return bool((value.isfinite() & ((value == 0) | (exponents <= MAX_SCALE_EXPONENT))).all())


def _is_primitive(n: Node, primitive: str) -> bool:
    """Whether `n` is one primitive on two operands."""
    if not isinstance(n.structure, Elementwise) or len(n.operands) != 2:
        return False
    x, y = (Ref(o.dtype, name) for o, name in zip(n.operands, "xy", strict=True))
    e = trace(n, (x, y))
    return isinstance(e, PrimitiveCall) and e.primitive == primitive and e.operands == (x, y)


def _weight_channel_dim(n: Node, factor: Node) -> int | None:
    """The dimension of the weights that the one dimension of the result along which `factor` changes takes its elements from."""
    s = n.structure
    own = [n.type.rank - factor.type.rank + k for k, e in enumerate(factor.shape) if e != 1]
    if not isinstance(s, Reduction) or s.combine != "add" or len(n.operands) != 2 or len(own) != 1:
        return None
    space = s.domain(n)
    index = tuple(var(f"i{k}") for k in range(n.type.rank))
    _, theirs = space.positions(index, tuple(var(f"r{k}") for k in range(len(space.extents))))
    return next(
        (k for k, d in enumerate(theirs) if d == index[own[0]] and n.operands[1].shape[k] == factor.type.numel), None
    )
