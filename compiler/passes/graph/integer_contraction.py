"""Contractions of dequantized operands as contractions of bytes, with sums in integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.analysis.contraction_nodes import is_contraction_node, operand_positions, with_sum_dtype
from compiler.analysis.quantized_value import (
    CODES,
    Match,
    QuantizedValue,
    is_known,
    match_quantized_values,
    operand_sums,
    place,
)
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_constant
from compiler.ir.graph.structure import Position, Reduction, index_vars, position_variables
from compiler.ir.symbolic.index_expr import product, var
from compiler.ir.types import f32, f64, i8, i32
from compiler.passes.base import Context, GraphPass, register

MAX_SUM = (1 << 31) - 1
"""Largest sum in i32."""


@register
@dataclass(frozen=True)
class IntegerContraction(GraphPass):
    """Multiply quantized operands as bytes and add in i32; apply zero points and scales to the sums.

    %y = matmul (%a - %za) * %sa, (%b - %zb) * %sb
    ->
    %p = matmul %a, %b {dtype=i32}
    %y = (cast (%p - %za * sums of %b - %zb * sums of %a + %za * %zb * terms) {dtype=f32}) * %sa * %sb

    The sum of integers is exact, if it fits i32; the floats before were rounded once for each product.  Zero points and
    scales must not vary along the sum.  What depends on constants only, such as the sums of weights, is folded later.
    """

    name = "integer-contraction"

    def run(self, ir: Graph, context: Context) -> Graph:
        found = match_quantized_values(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            if not is_contraction_node(n):
                continue
            a, b = (found[o] for o in n.operands)
            if not any(_is_quantized(m) for m in (a, b)):
                continue
            if n.dtype == i32 and all(o.dtype in CODES for o in n.operands):
                context.note(self, "runs in integers", n)
                continue
            rewritten = integer_contraction(n, a, b)
            if isinstance(rewritten, Node):
                if context.may_apply(self, "runs in integers", n):
                    new[n] = rewritten.with_name(n.name).with_loc(n.loc)
            else:
                context.missed(self, f"runs in {n.dtype}: {rewritten}", n)
        return ir.replace_nodes(new)


def _is_quantized(m: Match) -> bool:
    return isinstance(m, QuantizedValue) or m != ""


def integer_contraction(n: Node, a: Match, b: Match) -> Node | str:
    """Return contraction `n` of quantized values in integers, or the reason why that cannot be."""
    for number, m in enumerate((a, b)):
        if not isinstance(m, QuantizedValue):
            return m or f"operand {number} is not quantized"
        if m.codes.dtype not in CODES:
            return f"operand {number} is of {m.codes.dtype}"
    assert isinstance(a, QuantizedValue)
    assert isinstance(b, QuantizedValue)
    assert isinstance(n.structure, Reduction)
    domain = n.structure.domain(n)
    terms = product(domain.extents)
    if n.dtype == f64:
        return "zero points and scales are applied in f32"
    if "dtype" not in n.attrs:
        return f"{n.op.name} adds in the dtype of its operands"
    if not isinstance(terms, int):
        return "the number of products is not known"
    if domain.guards(index_vars("i", n.type.rank), index_vars("r", len(domain.extents))):
        return "some products are left out"
    if terms * _largest(a) * _largest(b) > MAX_SUM:
        return f"sums of {terms} products may not fit 32 bits"
    positions = operand_positions(n)
    placed = [
        [None if p is None else place(p, at, n.shape) for p in (x.zero_point, x.scale)]
        for x, at in zip((a, b), positions, strict=True)
    ]
    for x, (zero, scale) in zip((a, b), placed, strict=True):
        if (zero is None) != (x.zero_point is None) or (scale is None) != (x.scale is None):
            return "scales or zero points vary along the sum"
    (zero_a, scale_a), (zero_b, scale_b) = placed
    total = with_sum_dtype(n, (a.codes, b.codes), i32)
    for zero, other in ((zero_a, 1), (zero_b, 0)):
        if zero is not None:
            total = ops.sub(total, ops.mul(_sums(n, (a.codes, b.codes), other), zero))
    if zero_a is not None and zero_b is not None:
        total = ops.add(total, ops.mul(ops.mul(zero_a, zero_b), terms))
    if not n.dtype.is_float:
        return ops.as_dtype(total, n.dtype)
    result = ops.cast(total, dtype=f32)
    if scale_a is not None and scale_b is not None and is_known(scale_a) and is_known(scale_b):
        scale_a, scale_b = ops.mul(scale_a, scale_b), None
    for scale in (scale_a, scale_b):
        result = result if scale is None else ops.mul(result, scale)
    return ops.as_dtype(result, n.dtype)


def _largest(x: QuantizedValue) -> int:
    """Return the largest absolute value of a code minus its zero point, which is a code itself."""
    return 128 if x.zero_point is None and x.codes.dtype == i8 else 255


def _sums(n: Node, codes: Sequence[Node], number: int) -> Node:
    """Return the sums of the codes of operand `number` that each result of `n` reads, in i32."""
    return operand_sums(n, codes[number], number, i32) or _window_sums(n, codes, operand_positions(n), number)


def _window_sums(n: Node, codes: Sequence[Node], positions: Sequence[Position], number: int) -> Node:
    """Return the sums as a contraction with ones, of one result along each dimension that the codes do not vary along."""
    other = codes[1 - number]
    free = set(index_vars("i", n.type.rank)) - {var(v) for v in position_variables(positions[number])}
    shape = tuple(1 if d in free else e for d, e in zip(positions[1 - number], other.shape, strict=True))
    ones = ops.expand(scalar_constant(1, other.dtype), shape=shape)
    return with_sum_dtype(n, (codes[0], ones) if number == 0 else (ones, codes[1]), i32)
