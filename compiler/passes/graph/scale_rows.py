"""Powers of two that constants are multiplied by, moved to the rows that they multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import frexp

from compiler.analysis.contraction_nodes import mixed_contractions, operand_positions, results_of_element
from compiler.analysis.quantized_value import is_known, place
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, scalar_value
from compiler.ir.graph.structure import Reduction, is_view, position_variables, primitive_of
from compiler.ir.types import f32, i32
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.fold import static_bytes

EXPONENT_MASK = 0xFF << 23
"""Bits of the exponent of f32."""

LARGEST_EXPONENT = 60
"""Binary exponent of the largest number of a scaled row: between those of f32's largest numbers and of constants without their factor."""


@register
@dataclass(frozen=True)
class ScaleRows(GraphPass):
    """Multiply a few rows by a power of two instead of the constants that they are multiplied by.

    %y = matmul %x, (%w * 2^120)
      ->
    %p = power of two of the largest %x of a row   %y = matmul (%x / %p * 2^60), %w   %y * 2^60 * %p

    A multiplication for each constant takes as long as the product.  Applies to constants of more than `min_bytes` bytes, factors
    beyond 2^60, and at most `max_rows` rows, each of which is summed as a whole: windows of an image are not rows.  Where a row is
    not finite, its results are not; numbers of less than 2^-80 of the largest of their row are rounded.
    """

    name = "scale-rows"
    min_bytes: int = from_machine("l1")
    max_rows: int = from_machine("min_block_rows")

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            scaled = self.with_scaled_rows(n)
            if scaled is not None and context.may_apply(self, "rows are scaled, not constants", n):
                new[n] = scaled.with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)

    def with_scaled_rows(self, n: Node) -> Node | None:
        """Return contraction `n` with the factor of a constant operand on the other one; None if there is none."""
        if n.dtype != f32 or not isinstance(n.structure, Reduction):
            return None
        positions, terms = operand_positions(n), {f"r{k}" for k in range(len(n.structure.domain(n).extents))}
        for k, (w, x) in enumerate((n.operands, n.operands[::-1])):
            found = without_factor(w)
            if found is None or x.dtype != f32 or not is_known(w) or static_bytes(w) <= self.min_bytes:
                continue
            plain, factor = found
            if results_of_element(n, positions[k]) > self.max_rows:
                continue
            exponent = frexp(factor)[1] - 1
            summed = [d for d, e in enumerate(positions[1 - k]) if not position_variables((e,)).isdisjoint(terms)]
            has_rows = summed and all(position_variables((positions[1 - k][d],)) <= terms for d in summed)
            if factor != 2.0**exponent or exponent <= LARGEST_EXPONENT or not has_rows:
                continue
            power = largest_power(x, summed)
            back = place(power, positions[1 - k], n.shape)
            if back is None:
                return None
            rows = ops.mul(ops.div(x, power), 2.0**LARGEST_EXPONENT)
            operands = [rows, rows]
            operands[k] = plain
            y = n.op(*operands, loc=n.loc, **n.attrs)
            return ops.mul(ops.mul(y, 2.0 ** (exponent - LARGEST_EXPONENT)), back)
        return None


def without_factor(n: Node) -> tuple[Node, float] | None:
    """Return a product with a constant number, behind views, without it, and the number; None for any other node."""
    if is_view(n.structure, n) and len(n.operands) == 1:
        inner = without_factor(n.operands[0])
        return None if inner is None else (n.with_operands((inner[0],)), inner[1])
    factor = scalar_value(n.operands[1]) if primitive_of(n) == "mul" else None
    return None if factor is None else (n.operands[0], float(factor))


def largest_power(x: Node, dims: Sequence[int]) -> Node:
    """Return the largest power of two that is at most a number of each row of `x`, at least the smallest normal one."""
    largest = ops.maximum(ops.amax(ops.abs_(x), dims=tuple(dims), keepdim=True), 2.0**-126)
    return ops.bitcast(ops.and_(ops.bitcast(largest, dtype=i32), EXPONENT_MASK), dtype=f32)
