"""Factors behind a product with weights, as part of the weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from compiler.ir import ops
from compiler.ir.graph import Graph, Node
from compiler.ir.index import Dim, var
from compiler.ir.interpret_graph import interpret
from compiler.ir.scalar import Call, Ref
from compiler.ir.structure import Elementwise, Reduction
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.canonicalize import trace
from compiler.passes.graph.fold import constant_sources

MODERATE = 64
"""The largest power of 2 in a factor, or a factor's inverse, that becomes part of weights."""


@register
@dataclass(frozen=True)
class ScaleWeights(GraphPass):
    """%y = conv %x, %w   %b = add %y, %c   %z = mul %b, %s   ->   %y = conv %x, %w * %s   %z = add %y, %c * %s

    A batch norm that follows a convolution multiplies every channel by a number; with constant weights it costs nothing then.
    Where all is constant but %x, and nothing else reads %y or %b.  Half types are left alone: their weights would be rounded again;
    so are factors that might take weights out of the range of their type.
    """

    name = "scale-weights"

    def run(self, ir: Graph, context: Context) -> Graph:
        known = constant_sources(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            scaled = self.scaled(ir, n, known)
            if scaled is not None and not _is_moderate(n.operands[1]):
                context.missed(self, "the factor is too large or too small for the weights", n)
            elif scaled is not None:
                new[n] = scaled.named(n.name).at(n.loc)
                context.applied(self, "a factor became part of the weights", n)
        return ir.replace_nodes(new)

    def scaled(self, graph: Graph, n: Node, known: Collection[Node]) -> Node | None:
        """`n` without its factor; None where it has none that could be part of weights."""
        if not _is(n, "mul") or n.operands[1] not in known or n.dtype.is_half or not n.dtype.is_float:
            return None
        inner, factor = n.operands
        shift = inner.operands[1] if _is(inner, "add") and inner.operands[1] in known else None
        product = inner if shift is None else inner.operands[0]
        path = (product,) if shift is None else (product, inner)
        if any(len(graph.users[p]) != 1 or p in graph.outputs or p.type != n.type for p in path):
            return None
        across = _channel(product, factor) if isinstance(product.structure, Reduction) else None
        if across is None or product.operands[1] not in known or product.operands[1].dtype != n.dtype:
            return None
        x, weights = product.operands
        shape: tuple[Dim, ...] = tuple(factor.type.numel if k == across else 1 for k in range(weights.type.rank))
        whole = product.op(x, ops.mul(weights, ops.reshape(factor, shape=shape)), **product.attrs)
        return whole if shift is None else ops.add(whole, ops.mul(shift, factor))


def _is_moderate(factor: Node) -> bool:
    """Whether every number of the constant `factor` is 0 or far from the ends of its type's range."""
    (value,) = interpret(Graph((), (factor,)), ())
    exponents = torch.frexp(value)[1].abs()
    return bool((value.isfinite() & ((value == 0) | (exponents <= MODERATE))).all())


def _is(n: Node, primitive: str) -> bool:
    """Whether `n` is one primitive on two operands."""
    if not isinstance(n.structure, Elementwise) or len(n.operands) != 2:
        return False
    x, y = (Ref(o.dtype, name) for o, name in zip(n.operands, "xy", strict=True))
    e = trace(n, (x, y))
    return isinstance(e, Call) and e.primitive == primitive and e.operands == (x, y)


def _channel(n: Node, factor: Node) -> int | None:
    """The dimension of the weights that the one dimension of the result along which `factor` changes takes its elements from."""
    s = n.structure
    own = [n.type.rank - factor.type.rank + k for k, e in enumerate(factor.shape) if e != 1]
    if not isinstance(s, Reduction) or s.combine != "add" or len(n.operands) != 2 or len(own) != 1:
        return None
    space = s.space(n)
    index = tuple(var(f"i{k}") for k in range(n.type.rank))
    _, theirs = space.positions(index, tuple(var(f"r{k}") for k in range(len(space.extents))))
    return next(
        (k for k, d in enumerate(theirs) if d == index[own[0]] and n.operands[1].shape[k] == factor.type.numel), None
    )
