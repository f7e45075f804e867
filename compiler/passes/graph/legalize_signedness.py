"""Signed and unsigned bytes, as the target multiplies them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from compiler.analysis.contraction_nodes import matching_shape, mixed_contractions, with_sum_dtype
from compiler.analysis.quantized_value import CODES, QuantizedValue, is_known, match_quantized_values
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import CONSTANT, Node, constant_node
from compiler.ir.types import f64, i8, i32, u8
from compiler.passes.base import Context, GraphPass, register

CORRECTION_COST = 2
"""Cost of adding up activations for a zero point of the weights, in shifted operands."""


@register
@dataclass(frozen=True)
class LegalizeSignedness(GraphPass):
    """Give contractions of bytes the signedness that the target multiplies: on x86 an unsigned and a signed operand.

    %a = cast %x {dtype=i32}   ->   %u = xor (bitcast %x {dtype=u8}), 128   %a = sub (cast %u {dtype=i32}), 128

    A code changes by 128 and the zero point with it, so every value stays what it was; two scales become one.
    """

    name = "legalize-signedness"

    def run(self, ir: Graph, context: Context) -> Graph:
        if not context.matrix_shapes:
            return ir
        found = match_quantized_values(ir)
        new: dict[Node, Node] = {}
        for n in mixed_contractions(ir):
            matches = (found[o] for o in n.operands)
            values = tuple(m for m in matches if isinstance(m, QuantizedValue) and m.codes.dtype in CODES)
            wraps = n.dtype.is_integer and n.dtype.bits < i32.bits  # sums that are bytes keep their dtype
            if len(values) != 2 or wraps or n.dtype == f64:
                continue
            pairs = product(*((v, _with_other_sign(v)) for v in values))  # first as they are
            legal = [p for p in pairs if matching_shape([v.codes for v in p], i32, context.matrix_shapes)]
            best = min(legal, key=lambda v: _cost(values, v), default=values)
            dtypes = f"{best[0].codes.dtype} and {best[1].codes.dtype}"
            if best != values and context.may_apply(self, f"codes become {dtypes}", n):
                new[n] = with_sum_dtype(n, [v.dequantize(n.dtype) for v in best], n.dtype).with_name(n.name)
        return ir.replace_nodes(new)


def _cost(old: Collection[QuantizedValue], new: Collection[QuantizedValue]) -> int:
    """Return the number of operands that are shifted, and the cost of zero points of weights."""
    corrections = sum(is_known(v.codes) and v.zero_point is not None for v in new)
    return sum(a is not b for a, b in zip(old, new, strict=True)) + CORRECTION_COST * corrections


def _with_other_sign(x: QuantizedValue) -> QuantizedValue:
    """Return the same value with unsigned codes instead of signed ones, or the reverse."""
    if x.codes.dtype == i8:
        codes, shift = ops.xor(ops.bitcast(x.codes, dtype=u8), 128), 128
    else:
        codes, shift = ops.bitcast(ops.xor(x.codes, 128), dtype=i8), -128
    old = x.zero_point
    if old is not None and old.op is not CONSTANT:
        return replace(x, codes=codes, zero_point=ops.add(old, shift))
    values = np.asarray(shift if old is None else old.attrs["value"].numpy_values + shift, np.int32)
    return replace(x, codes=codes, zero_point=constant_node(values) if values.any() else None)
