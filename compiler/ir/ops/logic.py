"""Comparisons, selection and bitwise ops."""

from __future__ import annotations

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op, elementwise_type_rule, sample_input
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import binary, unary
from compiler.ir.types import boolean

COMPARED = ("f32", "i64", "bf16", "u8", "bool")
BITS = ("i64", "bool", "i32", "u8")
bool_result_type = elementwise_type_rule(boolean)

eq = declare_op("eq", "x: any, y: any", Elementwise(lambda x, y: x.eq(y)), type_rule=bool_result_type, aten=("aten.eq.Tensor", "aten.eq.Scalar"),
        reference=torch.eq, commutative=True, samples=binary(dtypes=COMPARED))  # fmt: skip
ne = declare_op("ne", "x: any, y: any", Elementwise(lambda x, y: x.ne(y)), type_rule=bool_result_type, aten=("aten.ne.Tensor", "aten.ne.Scalar"),
        reference=torch.ne, commutative=True, samples=binary(dtypes=COMPARED))  # fmt: skip
lt = declare_op("lt", "x: number, y: number", Elementwise(lambda x, y: x < y), type_rule=bool_result_type, aten=("aten.lt.Tensor", "aten.lt.Scalar"),
        reference=torch.lt, samples=binary(dtypes=COMPARED[:-1]))  # fmt: skip
le = declare_op("le", "x: number, y: number", Elementwise(lambda x, y: x <= y), type_rule=bool_result_type, aten=("aten.le.Tensor", "aten.le.Scalar"),
        reference=torch.le, samples=binary(dtypes=COMPARED[:-1]))  # fmt: skip
gt = declare_op("gt", "x: number, y: number", Elementwise(lambda x, y: x > y), type_rule=bool_result_type, aten=("aten.gt.Tensor", "aten.gt.Scalar"),
        reference=torch.gt, samples=binary(dtypes=COMPARED[:-1]))  # fmt: skip
ge = declare_op("ge", "x: number, y: number", Elementwise(lambda x, y: x >= y), type_rule=bool_result_type, aten=("aten.ge.Tensor", "aten.ge.Scalar"),
        reference=torch.ge, samples=binary(dtypes=COMPARED[:-1]))  # fmt: skip

isnan = declare_op("isnan", "x: float", Elementwise(lambda x: x.ne(x)), type_rule=bool_result_type, aten="aten.isnan.default",
           reference=torch.isnan, samples=unary(dtypes=("f32", "bf16")))  # fmt: skip
isinf = declare_op("isinf", "x: float", Elementwise(lambda x: s.absolute(x).eq(float("inf"))), type_rule=bool_result_type, aten="aten.isinf.default",
           reference=torch.isinf, samples=unary(dtypes=("f32", "f64")))  # fmt: skip

where = declare_op(
    "where", "condition: bool, x: any, y: any", Elementwise(s.where, uses_compute_dtype=False), reference=torch.where,
    samples=[
        sample_input("bool[4, 5]", "f32[4, 5]", "f32[]"), sample_input("bool[4, 1]", "i64[5]", "i64[4, 5]"), sample_input("bool[]", "bf16[3]", "bf16[1]"),
        sample_input("bool[3]", "bool[3]", "bool[]"), sample_input("bool[0, 3]", "f32[1, 3]", "f32[]"),
    ],
)  # fmt: skip

and_ = declare_op("and", "x: bits, y: bits", Elementwise(lambda x, y: x & y), reference=torch.bitwise_and, commutative=True,
          aten=("aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar", "aten.__and__.Tensor", "aten.__and__.Scalar"),
          samples=binary(dtypes=BITS))  # fmt: skip
or_ = declare_op("or", "x: bits, y: bits", Elementwise(lambda x, y: x | y), reference=torch.bitwise_or, commutative=True,
         aten=("aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar", "aten.__or__.Tensor", "aten.__or__.Scalar"),
         samples=binary(dtypes=BITS))  # fmt: skip
xor = declare_op("xor", "x: bits, y: bits", Elementwise(lambda x, y: x ^ y), reference=torch.bitwise_xor, commutative=True,
         aten=("aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar", "aten.__xor__.Tensor", "aten.__xor__.Scalar"),
         samples=binary(dtypes=BITS))  # fmt: skip
not_ = declare_op("not", "x: bits", Elementwise(s.invert), aten="aten.bitwise_not.default", reference=torch.bitwise_not,
          samples=unary(dtypes=BITS))  # fmt: skip
shift_left = declare_op(
    "shift_left", "x: integer, y: integer", Elementwise(lambda x, y: x << y),
    aten=("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar", "aten.bitwise_left_shift.Scalar_Tensor", "aten.__lshift__.Tensor", "aten.__lshift__.Scalar"),
    reference=torch.bitwise_left_shift, samples=binary(dtypes=("i64", "i32"), low=0, high=7),
)  # fmt: skip
shift_right = declare_op(
    "shift_right", "x: integer, y: integer", Elementwise(lambda x, y: x >> y),
    aten=("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar", "aten.bitwise_right_shift.Scalar_Tensor", "aten.__rshift__.Tensor", "aten.__rshift__.Scalar"),
    reference=torch.bitwise_right_shift, samples=binary(dtypes=("i64", "i32"), low=0, high=7),
)  # fmt: skip
