"""Rounding to integers, within the float types."""

from __future__ import annotations

import torch

from compiler.ir import scalar as s
from compiler.ir.op import op
from compiler.ir.ops.rules import unary
from compiler.ir.structure import Elementwise

FLOATS = ("f32", "f64", "bf16")

floor = op(
    "floor",
    "x: float",
    Elementwise(s.floor),
    aten="aten.floor.default",
    reference=torch.floor,
    samples=unary(dtypes=FLOATS),
)
ceil = op(
    "ceil",
    "x: float",
    Elementwise(s.ceil),
    aten="aten.ceil.default",
    reference=torch.ceil,
    samples=unary(dtypes=FLOATS),
)
trunc = op("trunc", "x: float", Elementwise(s.trunc), aten=("aten.trunc.default", "aten.fix.default"), reference=torch.trunc,
           samples=unary(dtypes=FLOATS))  # fmt: skip
round_ = op("round", "x: float", Elementwise(s.nearest), aten="aten.round.default", reference=torch.round,
            samples=unary(dtypes=FLOATS))  # fmt: skip
frac = op("frac", "x: float", Elementwise(lambda x: x - s.trunc(x)), aten="aten.frac.default", reference=torch.frac,
          samples=unary())  # fmt: skip
