"""Store constant integers of a few bits side by side in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from compiler.analysis.contraction_nodes import (
    is_contraction_node,
    mixed_contractions,
    operand_positions,
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
from compiler.ir.graph.graph import Graph, reachable
from compiler.ir.graph.node import CONSTANT, Node, constant_node, scalar_constant
from compiler.ir.graph.structure import index_vars, is_view, position_variables
from compiler.ir.symbolic.index_expr import var
from compiler.ir.types import f32, i32
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.fold import constant_sources, known_values, static_bytes

WORD_BITS, FIELD_BITS = 32, (1, 2, 4)
"""Bits of a word, those of a lane of f32, and of the fields that it may hold."""

MANTISSA_BITS, ONE_BITS = 23, 0x3F800000
"""Explicit bits of the mantissa of f32, and the bits of 1.0."""


@register
@dataclass(frozen=True)
class NarrowConstants(GraphPass):
    """Store constant weights whose values fit 1, 2 or 4 bits in that many.

    %w = constant i8[64, 128]   ->   %c = constant i32[64, 16]   %w = reshape (%c[..., None] << (28 - 4 * iota(8)) >> 28)

    Applies to constants of more than `min_bytes` bytes that a contraction in floats reads: it is limited by the bytes it reads,
    and unpacks them in registers.  Neighbours along the last dimension share a word.

    A value of b bits, put into the upper bits of the mantissa of 1.0, gives 1 + value / 2^b without a conversion.  A contraction
    of f32 with at most `max_terms` terms reads that instead, and corrects its sum by that of the other operand.  Where this
    one is infinite, the result is NaN, as in Winograd's algorithm: two infinities cancel.

    %y = matmul %x, (sub (cast %w {dtype=f32}), %z)
      ->
    %p = matmul %x, bitcast (fields of %c | 0x3f800000)   %y = (%p - (sum of %x) * (1 + (%z - least) / 16)) * 16
    """

    name = "narrow-constants"
    min_bytes: int = from_machine("l1")
    max_terms: int = 128  # bounds what cancels: the sum before the correction is 2^b times as large

    def run(self, ir: Graph, context: Context) -> Graph:
        found = match_quantized_values(ir)
        offsets, wide = dict[Node, Node](), set[Node]()
        for n in mixed_contractions(ir):
            offset = self.with_mantissas(n, found, wide)
            if offset is not None and context.may_apply(self, "reads values of a few bits as mantissas", n):
                offsets[n] = offset
        return self.with_words(ir.replace_nodes(offsets), context, wide)

    def with_mantissas(self, n: Node, found: Mapping[Node, Match], wide: set[Node]) -> Node | None:
        """Return contraction `n` of f32 sums with its constant operand of few bits as mantissas; None if it has none.

        Operands of more bits are added to `wide`, so that they are evaluated once.
        """
        positions, terms = operand_positions(n), n.structure.domain(n).extents  # type: ignore[attr-defined]  # a reduction
        if n.dtype != f32 or len(terms) != 1 or not (isinstance(terms[0], int) and terms[0] <= self.max_terms):
            return None
        for k, position in enumerate(positions):
            m = found[n.operands[k]]
            if not isinstance(m, QuantizedValue) or m.scale is not None or not is_known(m.dequantize(f32)):
                continue
            if not m.codes.dtype.is_integer or static_bytes(m.codes) <= self.min_bytes or m.codes in wide:
                continue
            if var("r0") not in position or (values := known_values(m.codes)) is None:
                continue
            bits, signed = fewest_bits(values)
            if bits > max(FIELD_BITS):
                wide.add(m.codes)
                continue
            axis = position.index(var("r0"))
            zero_point = scalar_constant(0, i32) if m.zero_point is None else place(m.zero_point, position, n.shape)
            sums = operand_sums(n, n.operands[1 - k], 1 - k, f32)
            if values.shape[axis] % (WORD_BITS // bits) or sums is None or zero_point is None:
                continue
            least = -(1 << (bits - 1)) * signed
            operands = list(n.operands)
            operands[k] = mantissas(m.codes, values - least, bits, axis)
            shift = ops.mul(ops.add(ops.cast(zero_point, dtype=f32), (1 << bits) - least), 2.0**-bits)
            total = ops.sub(with_sum_dtype(n, operands, f32), ops.mul(sums, shift))
            return ops.mul(total, 2.0**bits).with_name(n.name).with_loc(n.loc)
        return None

    def with_words(self, ir: Graph, context: Context, wide: Collection[Node]) -> Graph:
        """Return the graph with constants in words that are unpacked as integers, unless they are known to be `wide`."""
        new: dict[Node, Node] = {}
        for c in dict.fromkeys(self.candidates(ir)):
            if c in wide or (values := known_values(c)) is None:
                continue
            bits, signed = fewest_bits(values)
            fits = bits < c.dtype.bits and values.shape[-1] % (WORD_BITS // bits) == 0
            if fits and context.may_apply(self, f"stored in {bits} bits", c):
                words = unpacked_words(c, values, bits, signed)
                new[c] = ops.as_dtype(words, c.dtype).with_name(c.name)
                new |= {u: ops.as_dtype(words, u.dtype).with_loc(u.loc) for u in ir.users[c] if u.op is ops.cast}
        return ir.replace_nodes(new)

    def candidates(self, ir: Graph) -> Iterator[Node]:
        """Yield the constant integers, or what is computed from some, that contractions in floats read."""
        constants = constant_sources(ir)
        read = [o for n in ir.nodes if is_contraction_node(n) and n.dtype.is_float for o in n.operands]

        def is_unpacked(n: Node) -> bool:
            return n in constants and (not n.dtype.is_integer or is_transposed(n))

        for n in reachable(read, lambda n: n.operands if is_unpacked(n) else ()):
            is_large = n in constants and n.type.rank and static_bytes(n) > self.min_bytes
            if is_large and not is_unpacked(n) and not any(c.dtype == i32 for c in constants[n]):
                yield n


def is_transposed(n: Node) -> bool:
    """Return True if `n` is a view whose neighbours along the last dimension are not neighbours in its operand."""
    if not is_view(n.structure, n) or not n.type.rank or not n.operands[0].type.rank:
        return False
    index = index_vars("i", n.type.rank)
    ((_, position),) = n.structure.operand_elements(n, index, lambda: 0)
    return not position_variables(index[-1:]) & position_variables(position[-1:])


def fewest_bits(values: Array) -> tuple[int, bool]:
    """Return the least of 1, 2, 4 and 8 bits or more that hold all `values`, and whether a sign is among them."""
    low, high = int(values.min()), int(values.max())
    signed = low < 0
    for bits in FIELD_BITS:
        if -(1 << (bits - 1)) * signed <= low and high < 1 << (bits - signed):
            return bits, signed
    return values.dtype.itemsize * 8, signed


def words_of(c: Node, fields: Array, bits: int) -> tuple[Node, Node]:
    """Return words [..., words, 1] of the `fields` of `c`, `bits` bits for each, the first the lowest, and where each starts."""
    count = WORD_BITS // bits
    words = packed_words(c, fields, bits, np.arange(count) * bits)
    return ops.reshape(words, shape=(*words.shape, 1)), ops.cast(ops.mul(ops.iota(size=count), bits), dtype=i32)


def packed_words(c: Node, fields: Array, bits: int, starts: Array) -> Node:
    """Return words of the `fields` of `c`, `bits` bits for each, of which neighbours begin at the bits `starts` of a word."""
    packed = np.bitwise_or.reduce(fields.reshape(*fields.shape[:-1], -1, len(starts)) << starts, axis=-1)
    name = c.attrs["value"].name if c.op is CONSTANT else c.name
    data = ConstantData(i32, packed.astype(np.uint32).view(np.int32), f"{name}.bits{bits}" if name else "")
    return constant_node(data, loc=c.loc)


def from_innermost(fields: Node, shape: tuple[int, ...], axis: int) -> Node:
    """Return fields as a value of `shape`, whose last dimension becomes dimension `axis`."""
    last = len(shape) - 1
    order = list(range(last))
    return ops.permute(ops.reshape(fields, shape=shape), dims=(*order[:axis], last, *order[axis:]))


def unpacked_words(c: Node, values: Array, bits: int, signed: bool) -> Node:
    """Return the `values` of `c` as i32, computed from words of `bits` bits for each."""
    column, start = words_of(c, values.astype(np.int64) & ((1 << bits) - 1), bits)
    if signed:
        field = ops.shift_right(ops.shift_left(column, ops.sub(WORD_BITS - bits, start)), WORD_BITS - bits)
    else:
        field = ops.and_(ops.shift_right(column, start), (1 << bits) - 1)
    return ops.reshape(field, shape=values.shape)


def mantissas(c: Node, fields: Array, bits: int, axis: int) -> Node:
    """Return 1 + `fields` / 2^`bits` in f32, in the shape of `c`, from words that neighbours along `axis` share."""
    innermost = np.moveaxis(fields.astype(np.int64), axis, -1)
    column, start = words_of(c, innermost, bits)
    top = MANTISSA_BITS - bits
    field = ops.and_(ops.shift_left(ops.shift_right(column, start), top), ((1 << bits) - 1) << top)
    value = ops.bitcast(ops.or_(field, ONE_BITS), dtype=f32)
    return from_innermost(value, innermost.shape, axis)
