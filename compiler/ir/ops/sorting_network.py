"""Sorting networks: rows sorted by minima and maxima alone, which vectorize and do not branch on data."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.graph.node import Node, scalar_constant
from compiler.ir.ops.arithmetic import maximum, minimum
from compiler.ir.ops.concat_pad import cat
from compiler.ir.ops.creation import iota
from compiler.ir.ops.logic import and_, ne, not_, shift_right, where, xor
from compiler.ir.ops.views import permute, reshape, select, unsqueeze
from compiler.ir.types import i64

STEP_BITS = 2
"""Bits of an index that a step compares on: 2**STEP_BITS elements are sorted in registers between two passes over memory."""


def smallest_sorted(x: Node, count: int) -> Node:
    """Return the `count` smallest elements of each row of integers in ascending order, by bitonic networks (Batcher, 1968).

    Both `count` and the length of a row are powers of two.  Short blocks are sorted in registers, then blocks of 2, 4, ... times
    as many elements, up to `count`, odd ones in descending order, so that two neighbours are a bitonic sequence, which a merge
    sorts.  Of two blocks of `count` elements the smaller half is bitonic again.  Odd blocks are complemented, so that all are
    merged alike.
    """
    rows, length = x.shape
    bits = count.bit_length() - 1
    short = min(bits, STEP_BITS)
    x = _sort_short_blocks(x, short) if bits else x
    for level in range(short + 1, bits + 1):
        x = _merge(_complement_odd_blocks(x, [level - 1, level]), level)
    while length > count:
        x = _complement_odd_blocks(x, [bits] if bits else [])
        pairs = reshape(x, shape=(rows, length // (2 * count), 2, count))
        length //= 2
        x = reshape(minimum(select(pairs, 2, 0), select(pairs, 2, 1)), shape=(rows, length))
        x = _merge(_complement_odd_blocks(x, [bits] if bits else []), bits)
    return x


def _complement_odd_blocks(x: Node, block_bits: list[int]) -> Node:
    """Complement the elements of odd blocks of 2**b elements, for each b in `block_bits`; an even number of times is not at all."""
    length = x.shape[1]
    shifts = [b for b in block_bits if 1 << b < length]
    if not shifts:
        return x
    number = iota(size=length)
    parities = [shift_right(number, b) for b in shifts]
    parity = parities[0] if len(parities) == 1 else xor(*parities)
    return where(ne(and_(parity, 1), scalar_constant(0, i64)), not_(x), x)


def _merge(x: Node, bits: int) -> Node:
    """Sort each bitonic block of 2**bits elements in ascending order.

    Elements are compared whose indices differ in the highest bit of a block, then in the next one, and so on.  The bit to compare
    is always the highest of the index in memory, which then becomes the lowest (Stone, 1971): every step is the same loop.
    """
    rows, length = x.shape
    blocks = length >> bits
    if blocks > 1 and bits:
        x = reshape(permute(reshape(x, shape=(rows, blocks, 1 << bits)), dims=(0, 2, 1)), shape=(rows, length))
    for done in range(0, bits, STEP_BITS):
        x = _sort_in_registers(x, min(STEP_BITS, bits - done), _merge_parts)
    return x


def _sort_short_blocks(x: Node, bits: int) -> Node:
    """Sort blocks of 2**bits elements in ascending order, odd ones complemented; elements of a block come from all parts of a row."""
    several = x.shape[1] > 1 << bits
    return _sort_in_registers(_complement_odd_blocks(x, [0]) if several else x, bits, _sort_parts)


def _sort_in_registers(x: Node, bits: int, sort: Callable[[list[Node]], list[Node]]) -> Node:
    """Sort sequences whose elements differ in the highest `bits` bits of the index in memory, which then become the lowest."""
    rows, length = x.shape
    ways = 1 << bits
    parts = reshape(x, shape=(rows, ways, length // ways))
    result = sort([select(parts, 1, k) for k in range(ways)])
    return reshape(cat(*(unsqueeze(p, 2) for p in result), dim=2), shape=(rows, length))


def _sort_parts(parts: list[Node]) -> list[Node]:
    """Sort sequences, element i of which is element i of a part."""
    if len(parts) == 1:
        return parts
    half = len(parts) // 2
    return _merge_parts([*_sort_parts(parts[:half]), *reversed(_sort_parts(parts[half:]))])


def _merge_parts(parts: list[Node]) -> list[Node]:
    """Sort bitonic sequences, element i of which is element i of a part: `parts[0]` becomes the smallest."""
    if len(parts) == 1:
        return parts
    half = len(parts) // 2
    pairs = list(zip(parts[:half], parts[half:], strict=True))
    return [
        *_merge_parts([minimum(a, b) for a, b in pairs]),
        *_merge_parts([maximum(a, b) for a, b in pairs]),
    ]
