"""Products of floats with constant integers of a few bits as dot products of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.analysis.contraction_nodes import (
    mixed_contractions,
    operand_positions,
    results_of_element,
    with_sum_dtype,
)
from compiler.analysis.quantized_value import (
    Match,
    QuantizedValue,
    is_known,
    match_quantized_values,
    operand_sums,
    place,
)
from compiler.ir import ops
from compiler.ir.float_format import Array
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, constant_node, scalar_constant
from compiler.ir.graph.structure import Position, index_vars, is_view, position_variables, through_view
from compiler.ir.symbolic.index_expr import Dim, var, variables
from compiler.ir.types import DType, f32, i8, i32, u8
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.fold import known_values, static_bytes
from compiler.passes.graph.narrow_constants import FIELD_BITS, WORD_BITS, fewest_bits, from_innermost, packed_words
from compiler.target import find_matrix_shape

CODE_BITS = (*FIELD_BITS, 8)
"""Bits of integers that share words, or are bytes."""

SLICES = 3
"""Slices of a float of 24 bits, with 8 bits each."""

UNIT_BITS = 22
"""Bits that the largest number takes in units: with its sign one bit less than the slices have, so that none overflows."""

LEAST_UNIT = float(np.finfo(np.float32).tiny)
"""Least unit: the reciprocal of a smaller one would overflow."""

MAX_CODE = 255
"""Largest code, and zero point."""

MAX_TERMS = ((1 << 31) - 1) // (128 * 2 * MAX_CODE)
"""Terms whose sum fits i32: slices times differences of codes and zero points."""


@register
@dataclass(frozen=True)
class IntegerSlices(GraphPass):
    """Multiply floats by integers as slices of 8 bits, whose products are added in i32.

    %y = matmul %x, (cast %w {dtype=f32})                                      %x: f32[1, 64], %w: u8[64, 48]
      ->
    %unit = max(amax |%x| * 2^-22, 2^-126)   %q = cast (round (%x / %unit)) {dtype=i32}
    %d = cast (((%q + 0x808080) >> [16, 8, 0]) - 128) {dtype=i8}               %d: i8[3, 64]
    %p = matmul %d, %w {dtype=i32}   %y = sum (%p * [2^16, 2^8, 1] * %unit)

    A dot product of bytes multiplies four integers as they are stored, in the time of one multiply-add and without a conversion.
    Applies to constants of more than `min_bytes` bytes and to floats that at least `min_columns` results read, if the target has
    such dot products; to one row, if the sum is split into groups.  Integers of 1, 2 and 4 bits share words.  Zero points are
    subtracted from the sums.

    A float is rounded to 2^-23 of the largest of its row, as a sum of floats that contains that one is, whether or not the sum
    is split into groups; the sums of integers are exact.  Where a row is not finite, its results are not.

    Source: the slices of Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication by using fast
    routines of matrix multiplication", 2012, with integers as in Ootomo, Ozaki and Yokota, "DGEMM on integer matrix
    multiplication unit", 2024.
    """

    name = "integer-slices"
    min_bytes: int = from_machine("l1")
    min_columns: int = 64  # slices of a float take about as many operations as they save for so many

    def run(self, ir: Graph, context: Context) -> Graph:
        shapes = [s for s in context.matrix_shapes if s.m == 1 and s.k > SLICES]
        if not find_matrix_shape(shapes, u8.name, i8.name, i32.name):
            return ir
        found = match_quantized_values(ir)
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            sliced = self.with_slices(n, found)
            if sliced is not None and context.may_apply(self, f"multiplied in {SLICES} slices of 8 bits", n):
                new[n] = sliced.with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)

    def with_slices(self, n: Node, found: Mapping[Node, Match]) -> Node | None:
        """Return contraction `n` of f32 with its floats in slices; None if no operand consists of constant integers."""
        positions, terms = operand_positions(n), n.structure.domain(n).extents  # type: ignore[attr-defined]  # a reduction
        if n.dtype != f32 or len(terms) != 1 or not isinstance(terms[0], int) or terms[0] > MAX_TERMS:
            return None
        for k, (integers, floats) in enumerate((positions, positions[::-1])):
            m, x = found[n.operands[k]], n.operands[1 - k]
            rows = row_axis(floats, integers, n.type.rank)
            if not isinstance(m, QuantizedValue) or not self.is_constant_integer(m) or rows is None or x.dtype != f32:
                continue
            if not (integers.count(var("r0")) == floats.count(var("r0")) == 1) or self.has_few_columns(n, floats):
                continue
            is_split = len(split_dims(x, floats.index(var("r0")))) > 1
            values, axis = known_values(m.codes), integers.index(var("r0"))
            if values is None or (x.shape[rows[0]] != 1 and (is_split or not isinstance(x.shape[rows[0]], int))):
                continue
            if (chosen := code_bits(values, axis)) is not None:
                bits, least = chosen
                codes = codes_in_words(m.codes, values - least, bits, axis)
                return sliced_contraction(n, k, codes, zero_point_from(m.zero_point, least), rows)
        return None

    def is_constant_integer(self, m: QuantizedValue) -> bool:
        """Return True for integers of more than `min_bytes` bytes without scale, whose zero point has 8 bits."""
        if m.scale is not None or not m.codes.dtype.is_integer or not is_known(m.dequantize(f32)):
            return False
        zero_points = np.zeros(1, np.int32) if m.zero_point is None else known_values(m.zero_point)
        is_large = static_bytes(m.codes) > self.min_bytes
        return zero_points is not None and is_large and bool((abs(zero_points) <= MAX_CODE).all())

    def has_few_columns(self, n: Node, floats: Position) -> bool:
        """Return True if fewer than `min_columns` results of `n` read a float."""
        return results_of_element(n, floats) < self.min_columns


def row_axis(floats: Position, integers: Position, rank: int) -> tuple[int, int] | None:
    """Return a dimension of the floats along which results read the same integers, and that of the results; None without one."""
    reused = [k for k in range(rank) if f"i{k}" not in position_variables(integers)]
    return next(((floats.index(var(f"i{k}")), k) for k in reused if floats.count(var(f"i{k}")) == 1), None)


def code_bits(values: Array, axis: int) -> tuple[int, int] | None:
    """Return the bits of codes that fill words along `axis`, and the value of code 0; None if values need more than 8 bits."""
    least_bits, signed = fewest_bits(values)
    fitting = (b for b in CODE_BITS if b >= least_bits and values.shape[axis] % (WORD_BITS // b) == 0)
    bits = next(fitting, None)
    return None if bits is None else (bits, -(1 << (bits - 1)) * signed)


def zero_point_from(zero_point: Node | None, least: int) -> Node | None:
    """Return the zero point of codes of which 0 stands for `least`, None for 0."""
    if not least:
        return zero_point
    return ops.sub(scalar_constant(0, i32) if zero_point is None else zero_point, least)


def split_dim(x: Node, dim: int, rows: Dim) -> Node:
    """Return `x` with `rows` innermost indices of dimension `dim` as a dimension of their own, behind that of the rest."""
    return ops.reshape(x, shape=(*x.shape[:dim], x.shape[dim] // rows, rows, *x.shape[dim + 1 :]))


def split_dims(x: Node, dim: int) -> tuple[int, ...]:
    """Return dimension `dim` of `x`, and the others that views have split from the same dimension of what they show."""
    index = index_vars("i", x.type.rank)
    bounds = {f"i{k}": (0, d - 1) for k, d in enumerate(x.shape) if isinstance(d, int)}
    position: Position = index
    while is_view(x.structure, x) and len(x.operands) == 1:
        x, position = through_view(x, position, bounds)
    joined = {v for d in position if f"i{dim}" in variables(d) for v in variables(d)}
    return tuple(k for k in range(len(index)) if k == dim or f"i{k}" in joined)


def along(values: Sequence[float], dtype: DType, dim: int, rank: int) -> Node:
    """Return constants along dimension `dim` of `rank`."""
    data = ConstantData(dtype, np.array(values, dtype.numpy).reshape(-1, *[1] * (rank - dim - 1)), "")
    return constant_node(data)


def sliced_contraction(
    n: Node, number: int, codes: Node, zero_point: Node | None, rows: tuple[int, int]
) -> Node | None:
    """Return contraction `n` with its floats in slices and `codes` for operand `number`; None if parameters vary along a sum.

    `rows` are a dimension of the floats, and that of the results to which it leads: the slices lie there one behind the other.
    """
    of_codes, of_floats = (operand_positions(n)[k] for k in (number, 1 - number))
    x, (row, result_row), inner = n.operands[1 - number], rows, of_floats.index(var("r0"))
    count, rank = x.shape[row], x.type.rank
    largest = ops.amax(ops.abs_(x), dims=split_dims(x, inner), keepdim=True)
    unit = ops.maximum(ops.mul(largest, 2.0**-UNIT_BITS), LEAST_UNIT)
    units = ops.cast(ops.round_(ops.mul(x, ops.div(1.0, unit))), dtype=i32)
    starts = [8 * (SLICES - 1 - k) for k in range(SLICES)]
    bytes_ = ops.shift_right(
        split_dim(ops.add(units, sum(128 << s for s in starts)), row, count), along(starts, i32, row, rank + 1)
    )
    slices = ops.reshape(
        ops.cast(ops.sub(bytes_, 128), dtype=i8), shape=(*x.shape[:row], SLICES * count, *x.shape[row + 1 :])
    )
    operands = [slices, slices]
    operands[number] = codes
    products = with_sum_dtype(n, operands, i32)
    scale = place(unit, of_floats, n.shape)
    if scale is None:
        return None
    sums_of_codes = products
    if zero_point is not None:
        sums, offset = operand_sums(products, slices, 1 - number, i32), place(zero_point, of_codes, products.shape)
        if sums is None or offset is None:
            return None
        sums_of_codes = ops.sub(products, ops.mul(sums, offset))
    terms = split_dim(ops.cast(sums_of_codes, dtype=f32), result_row, count)
    weights = along([float(1 << s) for s in starts], f32, result_row, n.type.rank + 1)
    if scale.type.rank:
        scale = split_dim(scale, result_row, scale.shape[result_row])
    return ops.sum_(ops.mul(terms, ops.mul(weights, scale)), dims=(result_row,))


def codes_in_words(c: Node, codes: Array, bits: int, axis: int) -> Node:
    """Return `codes` of `bits` bits as u8, in the shape of `c`; those of less than 8 bits are read from words.

    Byte j of a word holds codes j, j + 4, ... of those that share it: all bytes give four neighbours at once.
    """
    if bits == 8:
        name = c.attrs["value"].name if c.op is CONSTANT else c.name
        return constant_node(ConstantData(u8, codes.astype(np.uint8), f"{name}.u8" if name else ""), loc=c.loc)
    innermost = np.moveaxis(codes.astype(np.int64), axis, -1)
    step, bytes_ = 8 // bits, WORD_BITS // 8
    starts = (bits * np.arange(step)[:, None] + 8 * np.arange(bytes_)).reshape(-1)
    words = packed_words(c, innermost, bits, starts)
    column = ops.reshape(words, shape=(*words.shape, 1, 1))
    of_step = ops.cast(ops.mul(ops.reshape(ops.iota(size=step), shape=(step, 1)), bits), dtype=i32)
    of_byte = ops.cast(ops.mul(ops.iota(size=bytes_), 8), dtype=i32)
    field = ops.and_(ops.shift_right(ops.shift_right(column, of_step), of_byte), (1 << bits) - 1)
    return from_innermost(ops.cast(field, dtype=u8), innermost.shape, axis)
