"""Several vectors of i32 become one of bytes: instructions that narrow two vectors at once, with saturation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from compiler.codegen.llvm.builder import IRBuilder
from compiler.codegen.llvm.scope import Axis
from compiler.codegen.llvm.targets import NarrowingInstructions
from compiler.codegen.llvm.transpose import shuffle
from compiler.ir.graph.structure import highest, lowest
from compiler.ir.scalar import Const, Expr, PrimitiveCall
from compiler.ir.types import i8, i32, u8

CHUNK_BITS = 128
"""x86 packs within each 128 bits of its vectors."""


def narrow(b: IRBuilder, instructions: NarrowingInstructions, vectors: Sequence[str]) -> str:
    """Return two or four vectors of i32 as one vector of bytes, in order."""
    lanes, chunks = instructions.bits // 32, instructions.bits // CHUNK_BITS
    half, whole = f"<{2 * lanes} x i16>", f"<{lanes} x i32>"
    pairs = [
        b.intrinsic(half, instructions.to_i16, (whole, first), (whole, second))
        for first, second in zip(vectors[::2], vectors[1::2], strict=True)
    ]
    packed = b.intrinsic(f"<{4 * lanes} x i8>", instructions.to_byte, (half, pairs[0]), (half, pairs[-1]))
    words = b.emit(f"bitcast <{4 * lanes} x i8> {packed} to {whole}")
    order = [chunk * 4 + number for number in range(len(vectors)) for chunk in range(chunks)]
    ordered = shuffle(b, words, "poison", "i32", lanes, order)
    return b.emit(f"bitcast <{len(order)} x i32> {ordered} to <{4 * len(order)} x i8>")


def saturated_operand(value: Expr) -> Expr | None:
    """Return the i32 that `value` converts to a byte with saturation, or None: cast<u8>(min(max(x, 0), 255)) saturates x."""
    if not (isinstance(value, PrimitiveCall) and value.primitive == "cast" and value.dtype in (u8, i8)):
        return None
    x: Expr = value.operands[0]
    for primitive, bound in (("min", highest(value.dtype)), ("max", lowest(value.dtype))):
        if not (isinstance(x, PrimitiveCall) and x.primitive == primitive and x.dtype == i32):
            return None
        x, limit = x.operands
        if not (isinstance(limit, Const) and limit.value == bound):
            return None
    return x


def packed_registers(coords: Sequence[Mapping[str, int]], lane: Axis) -> int:
    """Return how many of the first registers of a tile are stored as one vector of bytes: 4, 2, or 0 for none.

    They are full and follow each other along the lane axis.
    """
    first = coords[0]
    neighbours = takewhile(lambda c: {**c, lane.var: 0} == {**first, lane.var: 0}, coords)
    last = lane.unroll_count - 1 if lane.remaining else lane.unroll_count
    full = sum(c[lane.var] < last and lane.active_lanes(c[lane.var]) == lane.lanes for c in neighbours)
    return 4 if full >= 4 else 2 if full >= 2 else 0
