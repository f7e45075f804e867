"""The dtypes that a kernel multiplies and adds in."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.ir.scalar import PrimitiveCall
from compiler.ir.tile.contraction import contraction_of
from compiler.ir.tile.kernel import Kernel, Stmt, stmt_exprs, walk
from compiler.ir.types import DType

MOVING = ("cast", "bitcast", "where", "pack")
"""Primitives that compute nothing."""


def arithmetic_dtypes(kernel: Kernel) -> str:
    """Describe the dtypes of a kernel's contractions, such as "u8 x i8, i32" for products and sums, or else of its arithmetic.

    Two dtypes of products stand for values that an instruction multiplies as they are; one for the dtype that both are converted to.
    """
    contractions = dict.fromkeys(text for s in walk(kernel.body) if (text := _product_dtypes(s)))
    if contractions:
        return "; ".join(contractions)
    dtypes = list(_computed_dtypes(kernel))
    floats = [d for d in dtypes if d.is_float]
    widest = max(floats or dtypes, key=lambda d: d.bits, default=None)
    return f"{widest}" if widest else ""


def _product_dtypes(stmt: Stmt) -> str:
    contraction = contraction_of(stmt)
    if contraction is None:
        return ""
    packed = [e.dtype.element for e in (contraction.lhs, contraction.rhs)]
    if packed[0] and packed[1]:
        return f"{packed[0]} x {packed[1]}, {contraction.accumulator}"
    return f"{contraction.accumulator}"


def _computed_dtypes(kernel: Kernel) -> Iterator[DType]:
    """Yield the dtype in which each primitive computes."""
    for value in (e for s in walk(kernel.body) for e in stmt_exprs(s)):
        for e in value.subexprs:
            if isinstance(e, PrimitiveCall) and e.primitive not in MOVING:
                operand = e.operands[-1].dtype
                yield e.dtype if operand.element else operand.compute
