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
from compiler.ir.types import DType, f32, f64, i8, i32
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
            if not (a or b):
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


def integer_contraction(n: Node, a: Match, b: Match) -> Node | str:
    """Return contraction `n` of quantized values in integers, or the reason why that cannot be."""
    for number, m in enumerate((a, b)):
        if not isinstance(m, QuantizedValue):
            return m or f"operand {number} is not quantized"
        if m.codes.dtype not in CODES:
            return f"operand {number} is of {m.codes.dtype}"
    assert isinstance(a, QuantizedValue)
    assert isinstance(b, QuantizedValue)
    terms, reason = _count_terms(n, _largest(a) * _largest(b))
    if reason:
        return reason
    of_a, of_b = (_per_result(n, x, at) for x, at in zip((a, b), operand_positions(n), strict=True))
    if of_a is None or of_b is None:
        return "scales or zero points vary along the sum"
    (zero_a, scale_a), (zero_b, scale_b) = of_a, of_b
    total = _subtract_zero_points(n, (a.codes, b.codes), (zero_a, zero_b), terms)
    return _scaled(total, scale_a, scale_b, n.dtype) if n.dtype.is_float else ops.as_dtype(total, n.dtype)


def _count_terms(n: Node, largest: int) -> tuple[int, str]:
    """Return the number of products that a result of `n` adds, each at most `largest`; or 0, and why i32 cannot add them."""
    assert isinstance(n.structure, Reduction)
    domain = n.structure.domain(n)
    terms = product(domain.extents)
    if n.dtype == f64:
        return 0, "zero points and scales are applied in f32"
    if "dtype" not in n.attrs:
        return 0, f"{n.op.name} adds in the dtype of its operands"
    if not isinstance(terms, int):
        return 0, "the number of products is not known"
    if domain.guards(index_vars("i", n.type.rank), index_vars("r", len(domain.extents))):
        return 0, "some products are left out"
    if terms * largest > MAX_SUM:
        return 0, f"sums of {terms} products may not fit 32 bits"
    return terms, ""


def _per_result(n: Node, x: QuantizedValue, at: Position) -> tuple[Node | None, Node | None] | None:
    """Return zero point and scale of an operand in the shape of the results of `n`.

    `at` is where `n` reads it.  None if one of them varies along the sum.
    """
    zero, scale = (None if p is None else place(p, at, n.shape) for p in (x.zero_point, x.scale))
    if (zero is None) != (x.zero_point is None) or (scale is None) != (x.scale is None):
        return None
    return zero, scale


def _subtract_zero_points(
    n: Node, codes: tuple[Node, Node], zeros: tuple[Node | None, Node | None], terms: int
) -> Node:
    """Return the sum of products of `codes` minus their zero points, in i32."""
    total = with_sum_dtype(n, codes, i32)
    for zero, other in zip(zeros, (1, 0), strict=True):
        if zero is not None:
            total = ops.sub(total, ops.mul(_sums(n, codes, other), zero))
    zero_a, zero_b = zeros
    if zero_a is not None and zero_b is not None:
        total = ops.add(total, ops.mul(ops.mul(zero_a, zero_b), terms))
    return total


def _scaled(total: Node, scale_a: Node | None, scale_b: Node | None, dtype: DType) -> Node:
    """Return `total` times both scales in `dtype`; scales that are known are multiplied first."""
    if scale_a is not None and scale_b is not None and is_known(scale_a) and is_known(scale_b):
        scale_a, scale_b = ops.mul(scale_a, scale_b), None
    result = ops.cast(total, dtype=f32)
    for scale in (scale_a, scale_b):
        result = result if scale is None else ops.mul(result, scale)
    return ops.as_dtype(result, dtype)


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
