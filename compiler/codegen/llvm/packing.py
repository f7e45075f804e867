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
    if not lanes:
        return _pack_scalars(b, packed, packed.element, values)
    code, count, width = f"i{packed.element.bits}", packed.count, lanes
    source, target = llvm_type(packed.element, width), f"<{width} x {code}>"
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


def _pack_scalars(b: IRBuilder, packed: DType, element: DType, values: Sequence[str]) -> str:
    """Return one packed element, joined by shifts: LLVM would insert scalars into all lanes of a vector, one by one."""
    source, code, word = llvm_type(element), f"i{element.bits}", f"i{packed.bits}"
    total = ""
    for k, x in enumerate(values):
        x = x if source == code else b.emit(f"bitcast {source} {x} to {code}")
        x = b.emit(f"zext {code} {x} to {word}")
        x = b.emit(f"shl {word} {x}, {k * element.bits}") if k else x
        total = b.emit(f"or {word} {total}, {x}") if total else x
    target = llvm_type(packed)
    return total if target == word else b.emit(f"bitcast {word} {total} to {target}")
