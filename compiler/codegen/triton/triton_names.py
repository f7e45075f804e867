"""Names in Triton source: dtypes, primitives, and the helper functions that generated source defines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from keyword import kwlist

import numpy as np

from compiler.errors import TargetError, UnsupportedOp
from compiler.ir.scalar import PRIMITIVES, Const
from compiler.ir.types import DType, f32


class TritonError(TargetError):
    """A kernel cannot be expressed in Triton; the message says why."""


class RefusedKernelsError(TritonError):
    """All kernels of a program that cannot be expressed in Triton, each with the reason and the user's line."""

    def __init__(self, refused_kernels: Sequence[UnsupportedOp]) -> None:
        self.refused_kernels = tuple(refused_kernels)
        lines = [
            f"{len(self.refused_kernels)} kernel(s) cannot be expressed in Triton:",
            *map(str, self.refused_kernels),
        ]
        super().__init__("\n".join(lines))


DTYPES: Mapping[str, tuple[str, str]] = {
    "f64": ("tl.float64", "fp64"),
    "f32": ("tl.float32", "fp32"),
    "f16": ("tl.float16", "fp16"),
    "bf16": ("tl.bfloat16", "bf16"),
    "f8e4m3fn": ("tl.float8e4nv", "fp8e4nv"),
    "f8e5m2": ("tl.float8e5", "fp8e5"),
    "i64": ("tl.int64", "i64"),
    "i32": ("tl.int32", "i32"),
    "i16": ("tl.int16", "i16"),
    "i8": ("tl.int8", "i8"),
    "u8": ("tl.uint8", "u8"),
    "bool": ("tl.int1", "i1"),
}
"""Name of each dtype in source, and in a signature."""

INFIX_OPERATORS: Mapping[str, str] = {**{p.name: p.infix for p in PRIMITIVES.values() if p.infix}, "rem": "%"}
"""Primitives that are infix operators."""

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

TRITON_FUNCTIONS: Mapping[str, str] = {
    **{p: f"tl.{p}" for p in ("where", "fma", "abs")}, "where_unlikely": "tl.where", "max": "maximum", "min": "minimum",
    **{p: f"tl.{p}" for p in ("floor", "ceil", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "erf", "sin", "cos")},
    **{p: f"libdevice.{p}" for p in ("expm1", "log1p", "tanh", "tan", "asin", "acos", "atan", "sinh", "cosh", "pow")},
    **{p: f"libdevice.{p}" for p in ("trunc", "copysign")}, "round": "libdevice.rint",
    "exp_ftz": "tl.exp", "exp2_ftz": "tl.exp2",
}  # fmt: skip
"""Primitives that are functions; names without a module are in `HELPERS`."""

EXACT_FUNCTIONS: Mapping[str, str] = {"div": "tl.div_rn", "sqrt": "tl.sqrt_rn"}
"""Correctly rounded functions for f32 primitives whose default in Triton is approximate."""

ANY_DTYPE_FUNCTIONS = ("where", "where_unlikely", "fma", "abs", "max", "min")
"""Functions of all dtypes; the others take only f32 and f64."""

HELPERS: Mapping[str, str] = {
    "maximum": "def maximum(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "def minimum(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "multiply": "def multiply(a, b):\n    return a * b",
    "logical_or": "def logical_or(a, b):\n    return a | b",
    "logical_and": "def logical_and(a, b):\n    return a & b",
    "floordiv": "def floordiv(a, b):\n    return (a - floormod(a, b)) // b",
    "floormod": "def floormod(a, b):\n    return (a % b + b) % b  # % has the sign of a",
}
"""Helper functions, copied into the source that calls them; each may call only those after it."""

MODULE_NAMES = ("tl", "triton", "libdevice", "launch", "kernel", "signature", "options")
RESERVED = {*MODULE_NAMES, "pid", "range", "float", *HELPERS, *kwlist}
"""Names that no value of a kernel may take."""


def dtype_names(dtype: DType) -> tuple[str, str]:
    """Return the name of a dtype in source, and in a signature; TritonError if Triton has no such type."""
    if dtype.name not in DTYPES:
        raise TritonError(f"Triton has no {dtype}")
    return DTYPES[dtype.name]


def reduce_helper(op: str, dtype: DType) -> str:
    """Return the name of the helper that combines two values of a reduction; "" for a sum."""
    if dtype.kind == "bool":
        return {"max": "logical_or", "min": "logical_and"}[op]
    return {"add": "", "mul": "multiply", "max": "maximum", "min": "minimum"}[op]


def literal(e: Const, typed: bool = False) -> str:
    """Return a constant; unless `typed`, it takes the dtype of the other operand."""
    text = repr(e.value)
    if isinstance(e.value, float) and not math.isfinite(e.value):
        text = f'float("{e.value}")'
    elif e.dtype == f32 and np.float32(short := float(str(np.float32(e.value)))) == np.float32(e.value):
        text = repr(short)
    return f"tl.full((), {text}, {dtype_names(e.dtype)[0]})" if typed else text
