"""Rounding to integers, without a change of dtype."""

from __future__ import annotations

from collections.abc import Callable

import torch

from compiler.ir import scalar as s
from compiler.ir.graph.op import declare_op
from compiler.ir.graph.structure import Elementwise
from compiler.ir.ops.rules import unary
from compiler.ir.scalar import Expr

NUMBERS = ("f32", "f64", "bf16", "i64")


def _floats_only(rounded: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """Apply `rounded` to floats; integers stay as they are."""
    return lambda x: rounded(x) if x.dtype.is_float else x


floor = declare_op("floor", "x: number", Elementwise(_floats_only(s.floor)), aten="aten.floor.default", reference=torch.floor,
           samples=unary(dtypes=NUMBERS))  # fmt: skip
ceil = declare_op("ceil", "x: number", Elementwise(_floats_only(s.ceil)), aten="aten.ceil.default", reference=torch.ceil,
          samples=unary(dtypes=NUMBERS))  # fmt: skip
trunc = declare_op("trunc", "x: number", Elementwise(_floats_only(s.trunc)), aten=("aten.trunc.default", "aten.fix.default"), reference=torch.trunc,
           samples=unary(dtypes=NUMBERS))  # fmt: skip
round_ = declare_op("round", "x: number", Elementwise(_floats_only(s.round_even)), aten="aten.round.default", reference=torch.round,
            samples=unary(dtypes=NUMBERS))  # fmt: skip
frac = declare_op("frac", "x: float", Elementwise(lambda x: x - s.trunc(x)), aten="aten.frac.default", reference=torch.frac,
          samples=unary())  # fmt: skip
