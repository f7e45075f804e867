"""Multiplication by a power of two in one instruction, `vscalef` of AVX-512."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.codegen.llvm.builder import IRBuilder, llvm_type
from compiler.codegen.llvm.transpose import shuffle
from compiler.ir.types import DType

SUFFIXES = {"f32": "s", "f64": "d"}
"""Last letter of instructions on a dtype."""

CURRENT_ROUNDING = ("i32", "4")
"""Operand of an instruction that rounds as the control register says."""


def emit_scale(b: IRBuilder, dtype: DType, args: Sequence[str], lanes: int) -> str:
    """Emit x * 2^n on vectors of `lanes` elements (0: scalars), in as many registers as they fill."""
    name, least, element = SUFFIXES[dtype.name], 128 // dtype.bits, llvm_type(dtype)
    if not lanes:
        register = llvm_type(dtype, least)
        lowest = [b.emit(f"insertelement {register} poison, {llvm_type(dtype)} {a}, i64 0") for a in args]
        scaled = _scale(b, register, f"s{name}", lowest, ("i8", "1"), CURRENT_ROUNDING)
        return b.emit(f"extractelement {register} {scaled}, i64 0")
    if lanes < least:
        padded = [shuffle(b, a, "poison", element, lanes, [*range(lanes), *[0] * (least - lanes)]) for a in args]
        return shuffle(b, emit_scale(b, dtype, padded, least), "poison", element, least, range(lanes))
    bits, half = lanes * dtype.bits, lanes // 2
    if bits > 512:
        parts = ([shuffle(b, a, "poison", element, lanes, range(k, k + half)) for a in args] for k in (0, half))
        low, high = (emit_scale(b, dtype, part, half) for part in parts)
        return shuffle(b, low, high, element, half, range(lanes))
    rounding = (CURRENT_ROUNDING,) if bits == 512 else ()
    return _scale(b, llvm_type(dtype, lanes), f"p{name}.{bits}", args, (f"i{max(8, lanes)}", "-1"), *rounding)


def _scale(b: IRBuilder, register: str, name: str, args: Sequence[str], *others: tuple[str, str]) -> str:
    operands = ((register, a) for a in (*args, "zeroinitializer"))
    return b.intrinsic(register, f"llvm.x86.avx512.mask.scalef.{name}", *operands, *others)
