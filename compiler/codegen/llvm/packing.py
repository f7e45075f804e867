"""Packed elements from vectors of their values."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.builder import IRBuilder, llvm_type
from compiler.codegen.llvm.transpose import concat_vectors, shuffle
from compiler.ir.types import DType

PERMUTED_BYTES = 64
"""Bytes that `IRBuilder.byte_permutation` moves at once."""

BYTE_ORDER = "@byte_order_{}"
"""Global variable of a module, by the number of values in an element: the place of each byte of the elements among all values."""


def emit_pack(b: IRBuilder, packed: DType, values: Sequence[str], lanes: int) -> str:
    """Return elements of a `packed` dtype: value k of each is a lane of `values[k]`; scalars if `lanes` is 0.

    One instruction permutes the bytes of a whole vector where the CPU has it; else vectors are interleaved.
    """
    assert packed.element is not None
    code, count, width = f"i{packed.element.bits}", packed.count, max(lanes, 1)
    source, target = llvm_type(packed.element, width), f"<{width} x {code}>"
    if not lanes:
        values = [b.emit(f"insertelement {source} poison, {llvm_type(packed.element)} {x}, i64 0") for x in values]
    codes = [x if source == target else b.emit(f"bitcast {source} {x} to {target}") for x in values]
    whole, order = f"<{count * width} x {code}>", [k * width + lane for lane in range(width) for k in range(count)]
    joined = concat_vectors(b, codes, code, width)
    if b.byte_permutation and code == "i8" and len(order) == PERMUTED_BYTES:
        # a variable: LLVM replaces a permutation by a constant with eleven shuffles
        name = BYTE_ORDER.format(count)
        b.declarations.add(f"{name} = private global {whole} <{', '.join(f'i8 {k}' for k in order)}>")
        places = b.emit(f"load {whole}, ptr {name}, align {PERMUTED_BYTES}")
        joined = b.intrinsic(whole, b.byte_permutation, (whole, joined), (whole, places))
    else:
        joined = shuffle(b, joined, "poison", code, len(order), order)
    return b.emit(f"bitcast {whole} {joined} to {llvm_type(packed, lanes)}")
