"""Split the sum of a matrix product at the groups of its weights, so that scales do not vary along the inner sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from compiler.analysis.contraction_nodes import is_contraction_node, operand_positions
from compiler.analysis.quantized_value import CODES, Match, QuantizedValue, match_quantized_values, place
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import Position, index_vars, is_view, through_view
from compiler.ir.symbolic.index_expr import var
from compiler.ir.tile.kernel import dim_hint
from compiler.ir.types import f64, i32
from compiler.passes.base import Context, GraphPass, from_machine, register


@register
@dataclass(frozen=True)
class SplitReductions(GraphPass):
    """Add the products of quantized values in groups that share a scale, then the scaled sums of the groups.

    %g = mul (cast %q {dtype=f32}), %s   %w = permute (reshape %g)   %y = matmul %x, %w         %g: f32[96, 2, 32], %s: f32[96, 2, 1]
      ->
    %a = permute (reshape %x)   %b = permute %g   %p = matmul %a, %b   %y = sum %p {dims=[0]}   %p: f32[2, 8, 96]

    Applies to integers where the target adds their products in dot products that a group consists of, and to few rows of
    floats, whose sums of both levels fit registers: one multiplication fewer for each weight that is read.  Scales of the
    other operand, which do not vary along the sum, follow it.
    """

    name = "split-reductions"
    registers: int = from_machine("registers")

    def run(self, ir: Graph, context: Context) -> Graph:
        found = match_quantized_values(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            if not is_matrix_product(n) or n.dtype == f64 or (weights := grouped_weights(n.operands[1], found)) is None:
                continue
            x, (groups, size, _) = found[n.operands[0]], weights.shape
            pays = self.has_few_rows(n) or self.has_dots(x, size, context)
            if pays and context.may_apply(self, f"adds in {groups} groups of {size}", n):
                new[n] = in_groups(n, x, weights).with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)

    def has_dots(self, x: Match, size: int, context: Context) -> bool:
        """Return True if the target multiplies rows `x` as integers, in dot products that a group consists of."""
        steps = [s.k for s in context.matrix_shapes if s.m == 1 and s.accumulator == i32.name]
        is_integer = isinstance(x, QuantizedValue) and x.codes.dtype in CODES
        return is_integer and bool(steps) and all(size % k == 0 for k in steps)

    def has_few_rows(self, n: Node) -> bool:
        """Return True if two accumulators for each row of `n`, and for two registers of columns, take half of the registers."""
        return 8 * prod(map(dim_hint, n.shape[:-1])) <= self.registers


def is_matrix_product(n: Node) -> bool:
    """Return True if `n` multiplies matrices, or a batch of them, by one matrix of static size."""
    if not is_contraction_node(n) or n.operands[1].type.rank != 2 or not n.operands[1].type.is_static:
        return False
    *rows, column = index_vars("i", n.type.rank)
    (*read, k), weights = operand_positions(n)
    is_row = len(read) == len(rows) and all(
        r == i or (d == 1 and r == 0) for r, i, d in zip(read, rows, n.shape, strict=False)
    )
    return is_row and k == var("r0") and weights == (k, column)


def grouped_weights(w: Node, found: Mapping[Node, Match]) -> Node | None:
    """Return quantized weights [inner, columns] as [groups, size of a group, columns] with a scale for each group; None for others."""
    source = w
    while not isinstance(found[source], QuantizedValue):
        if not is_view(source.structure, source) or len(source.operands) != 1:
            return None
        (source,) = source.operands
    q = found[source]
    assert isinstance(q, QuantizedValue)
    if source is w or q.codes.dtype not in CODES:
        return None
    for size in dict.fromkeys(source.shape):
        if isinstance(size, int) and 1 < size < w.shape[0] and w.shape[0] % size == 0:
            grouped = as_groups(w, size, source)
            if grouped is not None and not varies_inside(grouped, q):
                return grouped
    return None


def as_groups(w: Node, size: int, source: Node) -> Node | None:
    """Return a matrix `w` with its rows in groups of `size` as a permutation of `source`, which it views; None if it is none."""
    shape = (w.shape[0] // size, size, w.shape[1])
    group, inside, column = index = index_vars("i", 3)
    bounds = {f"i{k}": (0, d - 1) for k, d in enumerate(shape)}
    at: Position = (group * size + inside, column)
    while w is not source:
        w, at = through_view(w, at, bounds)
    if w.type.rank != 3 or set(at) != set(index):
        return None
    return ops.permute(w, dims=tuple(at.index(i) for i in index))


def varies_inside(grouped: Node, q: QuantizedValue) -> bool:
    """Return True if the scales or zero points of `q` vary in a group of `grouped`, a permutation of its value."""
    dim = grouped.attrs["dims"][1] - grouped.type.rank
    return any(p is not None and p.type.rank >= -dim and p.shape[dim] != 1 for p in (q.scale, q.zero_point))


def in_groups(n: Node, x: Match, weights: Node) -> Node:
    """Return the matrix product `n` of `x` and the matrix that `weights` are the groups of, as a sum over groups."""
    groups, size, _ = weights.shape
    scale, value, wide, rank = None, n.operands[0], n.dtype.compute, n.type.rank
    if isinstance(x, QuantizedValue):
        scale = None if x.scale is None else place(x.scale, operand_positions(n)[0], n.shape)
        value = replace(x, scale=None if scale is not None else x.scale).dequantize(wide)
    rows = ops.reshape(value, shape=(*value.shape[:-1], groups, size))
    rows = ops.permute(rows, dims=(*range(rank - 2), rank - 1, rank - 2, rank))
    dtype = None if rows.dtype == wide else wide
    total = ops.sum_(n.op(rows, ops.as_dtype(weights, wide), dtype=dtype, loc=n.loc), dims=(rank - 2,))
    if scale is not None:
        total = ops.mul(total, ops.as_dtype(scale, wide))
    return ops.as_dtype(total, n.dtype)
