"""Conversions between dtypes."""

from __future__ import annotations

from compiler.ir.graph.node import REQUIRED, Node, Signature
from compiler.ir.graph.op import declare_op, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.scalar import Expr
from compiler.ir.torch_types import to_torch
from compiler.ir.types import DTYPES, DType, TensorType, bf16, boolean, f16, f32, i16, i32, i64, u8


def _cast_type(s: Signature) -> TensorType:
    return TensorType(s.attrs["dtype"], s.types[0].shape)


def _bitcast_type(s: Signature) -> TensorType:
    if s.attrs["dtype"].bytes != s.types[0].dtype.bytes:
        raise s.error(f"{s.attrs['dtype']} and {s.types[0].dtype} differ in width")
    if s.attrs["dtype"] == boolean != s.types[0].dtype:
        raise s.error("not every byte is a bool; compare with 0")
    return _cast_type(s)


def _convert(x: Expr, dtype: DType) -> Expr:
    return x.ne(0) if dtype == boolean and x.dtype != boolean else x.to(dtype)


cast = declare_op(
    "cast", "x: any", Elementwise(_convert),
    type_rule=_cast_type, attrs={"dtype": REQUIRED},
    reference=lambda x, dtype: x.to(to_torch(dtype)),
    samples=[
        sample_input("f32[4, 5]", dtype=i64), sample_input("i64[3]", dtype=f32), sample_input("f32[0, 3]", dtype=i32), sample_input("bool[]", dtype=f32),
        sample_input("f32[2, 3]", dtype=boolean), sample_input("f32[7]", dtype=bf16), sample_input("bf16[7]", dtype=f32), sample_input("f16[5]", dtype=i32),
        sample_input("i64[5]", dtype=f16), sample_input("i64[5]", dtype=boolean), sample_input("f32[6]", dtype=u8, low=0, high=255),
        sample_input("bool[6]", dtype=i64),
        *(sample_input(f"{d}[9]", dtype=f32, low=-400, high=400) for d in DTYPES.values() if d.is_reduced_float),
        *(sample_input("f32[9]", dtype=d, low=-400, high=400) for d in DTYPES.values() if d.is_reduced_float),
    ],
)  # fmt: skip

bitcast = declare_op(
    "bitcast", "x: any", Elementwise(lambda x, dtype: x.to(dtype) if x.dtype == boolean else x.bitcast(dtype), uses_compute_dtype=False),
    type_rule=_bitcast_type, attrs={"dtype": REQUIRED},
    reference=lambda x, dtype: x.view(to_torch(dtype)),
    samples=[sample_input("i32[4, 5]", dtype=f32), sample_input("i32[0]", dtype=f32), sample_input("i64[]", dtype=i64), sample_input("bool[3]", dtype=u8),
             sample_input("bf16[5]", dtype=f16), sample_input("f16[3]", dtype=i16), sample_input("i16[2, 9]", dtype=bf16)],
)  # fmt: skip


def as_dtype(x: Node, dtype: DType) -> Node:
    """Return `x` cast to `dtype`, or `x` itself if it has that dtype."""
    return x if x.dtype == dtype else cast(x, dtype=dtype)
