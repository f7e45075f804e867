"""Conversions of constant floats of 8 bits that need not look for NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node
from compiler.ir.graph.structure import is_cast, viewed
from compiler.ir.types import DTYPES, f32, i32
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class ExpandFiniteCasts(GraphPass):
    """Convert constants of 8-bit floats to f32 by its fields, without the case of NaN.

    %f = cast %w {dtype=f32}                                                                    %w = constant f8e4m3fn[...]
      ->
    %i = cast (bitcast %w {dtype=i8}) {dtype=i32}   %f = bitcast (%i << 20 & mask) {dtype=f32} * 2^120

    Applies if each element of the constant is a number.
    """

    name = "expand-finite-casts"
    exact = True

    def run(self, ir: Graph, context: Context) -> Graph:
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            is_finite = is_cast(n) and n.dtype == f32 and is_finite_constant(n.operands[0])
            if is_finite and context.may_apply(self, "the constant has no NaN", n):
                new[n] = finite_to_f32(n.operands[0]).with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)


def is_finite_constant(n: Node) -> bool:
    """Return True if `n` is a constant of floats of 8 bits, or a view of one, whose elements are numbers."""
    n = viewed(n)
    if n.op is not CONSTANT or not (n.dtype.is_encoded and n.dtype.bits == 8):
        return False
    return bool(np.isfinite(n.attrs["value"].numpy_values).all())


def finite_to_f32(x: Node) -> Node:
    """Return the f32 value of floats of 8 bits that are numbers: the fields of the code are put where f32 has them."""
    f = x.dtype.float_format
    shift = f32.float_format.mantissa_bits - f.mantissa_bits
    code = ops.cast(ops.bitcast(x, dtype=DTYPES["i8"]), dtype=i32)
    bits = ops.and_(ops.shift_left(code, shift), ((f.sign - 1) << shift) - (1 << 31))
    return ops.mul(ops.bitcast(bits, dtype=f32), 2.0 ** (f32.float_format.bias - f.bias))
