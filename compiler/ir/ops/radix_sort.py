"""Radix sorts: rows sorted by one digit of their keys after the other, in time that grows with their length alone."""

from __future__ import annotations

import torch

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import CountingSort
from compiler.ir.ops.cast import as_dtype
from compiler.ir.ops.creation import iota
from compiler.ir.ops.logic import and_, or_, shift_left, shift_right, xor
from compiler.ir.ops.rules import same_type
from compiler.ir.types import TensorType, i32, i64

DIGIT_BITS = 8
"""Bits of a digit: the counts of its values, and a cache line for each of them, fit the first-level cache."""


def _counting_sort_type(s: Signature) -> TensorType:
    x, keys = s.types
    if not x.rank or x.shape != keys.shape:
        raise s.error("x and its keys must have the same shape and at least one dimension")
    return same_type(s)


counting_sort = declare_op(
    "counting_sort", "x: any, keys!: integer", CountingSort(lambda n: int(n.attrs["buckets"])), type_rule=_counting_sort_type,
    attrs={"buckets": REQUIRED},
    reference=lambda x, keys, buckets: x.gather(-1, torch.argsort(keys, dim=-1, stable=True)),
    samples=[
        sample_input("f32[4, 9]", "i64[4, 9]", buckets=4, low=0, high=4), sample_input("i64[40]", "i32[40]", buckets=8, low=0, high=8),
        sample_input("bf16[2, 3, 1]", "i32[2, 3, 1]", buckets=2, low=0, high=2), sample_input("f32[0]", "i64[0]", buckets=2),
    ],
)  # fmt: skip
"""Each row of `x` in stable ascending order of its `keys`, which lie in 0..buckets-1."""


def sorted_by_digits(keys: Node, key_bits: int, index_bits: int) -> Node | None:
    """Return words in the order of signed `keys`, equal ones in the order of the row; None if 64 bits do not hold a word.

    `sorted_keys` and `sorted_indices` read a word.  A pass sorts by the lowest digit and makes it the highest, so that all passes
    are the same kernel; after the last one, the digits of the key are the highest bits.
    """
    if key_bits + index_bits > 64:
        return None
    dtype = i32 if key_bits + index_bits <= 32 else i64
    sign, bits = -(1 << (key_bits - 1)), (1 << key_bits) - 1
    words = xor(as_dtype(keys, dtype), sign)
    words = words if key_bits == dtype.bits else and_(words, bits)
    if index_bits:
        words = or_(words, shift_left(as_dtype(iota(size=keys.shape[1]), dtype), key_bits))
    for _ in range(key_bits // DIGIT_BITS):
        rest = and_(shift_right(words, DIGIT_BITS), (1 << (dtype.bits - DIGIT_BITS)) - 1)
        digit = and_(words, (1 << DIGIT_BITS) - 1)
        rotated = or_(rest, shift_left(words, dtype.bits - DIGIT_BITS))
        words = counting_sort(rotated, digit, buckets=1 << DIGIT_BITS)
    return words


def sorted_keys(words: Node, key_bits: int) -> Node:
    """Return the signed keys of words from `sorted_by_digits`."""
    others = words.dtype.bits - key_bits
    return xor(shift_right(words, others) if others else words, -(1 << (key_bits - 1)))


def sorted_indices(words: Node, index_bits: int) -> Node:
    """Return the indices that the lowest bits of words hold."""
    return as_dtype(and_(words, (1 << index_bits) - 1), i64)
