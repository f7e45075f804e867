"""Store constant integers of a few bits side by side in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from compiler.analysis.contraction_nodes import is_contraction_node
from compiler.ir import ops
from compiler.ir.graph.constant import ConstantData
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, constant_node
from compiler.ir.graph.structure import index_vars, is_view, position_variables
from compiler.ir.torch_types import Array
from compiler.ir.types import i32
from compiler.passes.base import Context, GraphPass, from_machine, register
from compiler.passes.graph.fold import constant_sources, constant_values, static_bytes

WORD_BITS = 32
"""Bits of a word, those of a lane of f32."""


@register
@dataclass(frozen=True)
class NarrowConstants(GraphPass):
    """Store constant weights whose values fit 1, 2 or 4 bits in that many.

    %w = constant i8[64, 128]   ->   %c = constant i32[64, 16]   %w = reshape (%c[..., None] << (28 - 4 * iota(8)) >> 28)

    Applies to constants of more than `min_bytes` bytes that a contraction in floats reads: it is limited by the bytes it reads,
    and unpacks them in registers.  Neighbours along the last dimension share a word.
    """

    name = "narrow-constants"
    exact = True
    min_bytes: int = from_machine("l1")

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for c in dict.fromkeys(self.candidates(ir)):
            if (constant := constant_values([c]).get(c)) is None:
                continue
            values = constant.attrs["value"].numpy_values
            bits, signed = fewest_bits(values)
            if bits < c.dtype.bits and values.shape[-1] % (WORD_BITS // bits) == 0:
                words = unpacked_words(c, values, bits, signed)
                new[c] = ops.as_dtype(words, c.dtype).with_name(c.name)
                new |= {u: ops.as_dtype(words, u.dtype).with_loc(u.loc) for u in ir.users[c] if u.op is ops.cast}
                context.applied(self, f"stored in {bits} bits", c)
        return ir.replace_nodes(new)

    def candidates(self, ir: Graph) -> Iterator[Node]:
        """Yield the constant integers, or what is computed from some, that contractions in floats read."""
        constants = constant_sources(ir)
        seen = set[Node]()
        stack = [o for n in ir.nodes if is_contraction_node(n) and n.dtype.is_float for o in n.operands]
        while stack:
            n = stack.pop()
            if n in seen or n not in constants:
                continue
            seen.add(n)
            if not n.dtype.is_integer or is_transposed(n):
                stack += n.operands
            elif n.type.rank and static_bytes(n) > self.min_bytes and not any(c.dtype == i32 for c in constants[n]):
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
    for bits in (1, 2, 4):
        if -(1 << (bits - 1)) * signed <= low and high < 1 << (bits - signed):
            return bits, signed
    return values.dtype.itemsize * 8, signed


def unpacked_words(c: Node, values: Array, bits: int, signed: bool) -> Node:
    """Return the `values` of `c` as i32, computed from words of `bits` bits for each; the first is the lowest."""
    count = WORD_BITS // bits
    fields = values.reshape(*values.shape[:-1], -1, count).astype(np.int64) & ((1 << bits) - 1)
    packed = np.bitwise_or.reduce(fields << (np.arange(count) * bits), axis=-1).astype(np.uint32).view(np.int32)
    name = c.attrs["value"].name if c.op is CONSTANT else c.name
    words = constant_node(ConstantData(i32, packed, f"{name}.bits{bits}" if name else ""), loc=c.loc)
    column = ops.reshape(words, shape=(*packed.shape, 1))
    start = ops.cast(ops.mul(ops.iota(size=count), bits), dtype=i32)
    if signed:
        field = ops.shift_right(ops.shift_left(column, ops.sub(WORD_BITS - bits, start)), WORD_BITS - bits)
    else:
        field = ops.and_(ops.shift_right(column, start), (1 << bits) - 1)
    return ops.reshape(field, shape=values.shape)
