"""Elementwise ops."""

import torch

from compiler.ir import scalar as s
from compiler.ir.op import elementwise_type, op, sample
from compiler.ir.structure import Elementwise
from compiler.ir.types import boolean

add = op("add", "x: number, y: number", Elementwise(lambda x, y: x + y), reference=torch.add, commutative=True,
         samples=[sample("f32[4, 5]", "f32[5]"), sample("i64[3]", "i64[]")])
silu = op("silu", "x: float", Elementwise(lambda x: x / (1 + s.exp(-x))), aten="aten.silu.default",
          reference=torch.nn.functional.silu, samples=[sample("f32[4, 5]"), sample("f32[0, 3]")])
less = op("lt", "x: any, y: any", Elementwise(lambda x, y: x < y), type=elementwise_type(boolean), reference=torch.lt,
          samples=[sample("f32[4]", "f32[4]")])
