"""Quantization moves towards producers, so that kernels exchange bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from compiler.analysis.quantized_value import CODES, Match, QuantizedValue, is_extreme, match_quantized_values
from compiler.analysis.scalar_chain import apply_chain, is_increasing_chain, scalar_chain, varying_operand
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, input_node
from compiler.ir.graph.structure import is_permutation
from compiler.ir.interpret.graph import interpret
from compiler.ir.torch_types import to_torch
from compiler.ir.types import TensorType
from compiler.passes.base import Context, GraphPass, register


@register
@dataclass(frozen=True)
class HoistQuantize(GraphPass):
    """Quantize before views and max pooling instead of behind them, and not again what has the same scale and zero point.

    %r = reshape %x   %q = cast (round (mul %r, 4.0)) {dtype=i8}   ->   %q = reshape (cast (round (mul %x, 4.0)) {dtype=i8})

    What is quantized again may have passed views, ReLU, maxima and concatenations.  It is left out if every one of the 256
    codes comes back, which is computed.  Results keep their bits, except that the largest of numbers and NaN is the code
    of a number.
    """

    name = "hoist-quantize"

    def run(self, ir: Graph, context: Context) -> Graph:
        found = match_quantized_values(ir)
        new: dict[Node, Node] = {}
        for n in ir.nodes:
            chain = scalar_chain(n) if not isinstance(n.result_type, tuple) and n.dtype in CODES else []
            if not chain:
                continue
            codes, why = _same_codes(chain, found), "it is quantized so already"
            if codes is None:
                codes, why = _hoisted(ir, chain), "quantized earlier"
            if codes is not None and context.may_apply(self, why, n):
                new[n] = codes
        return ir.replace_nodes(new)


def _same_codes(chain: Sequence[Node], found: Mapping[Node, Match]) -> Node | None:
    """Return the codes that the first node of the chain computes again from their dequantized values, or None."""
    for k, n in enumerate(chain, 1):
        x = varying_operand(n)
        assert x is not None
        value = found[x]
        if not isinstance(value, QuantizedValue) or value.codes is x or value.constants is None:
            continue
        dtype = value.codes.dtype
        if dtype != chain[0].dtype or value.codes.type != chain[0].type:
            return None
        codes = torch.tensor(CODES[dtype], dtype=to_torch(dtype))
        given = input_node("codes", TensorType(dtype, (len(codes),)))
        alone = QuantizedValue(given, value.zero_point, value.scale).dequantize(x.dtype)
        (again,) = interpret(Graph((given,), (apply_chain(chain[:k], alone),)), (codes,))
        return value.codes if torch.equal(again, codes) else None
    return None


def _hoisted(graph: Graph, chain: Sequence[Node]) -> Node | None:
    """Return the chain before the views and maxima that it starts from; None if it does not, or if they have other uses."""
    below = varying_operand(chain[-1])
    passed: list[Node] = []
    increasing = is_increasing_chain(chain)
    while below is not None and (is_permutation(below) or (increasing and is_extreme(below))):
        passed.append(below)
        (below,) = below.operands
    if not passed or any(len(graph.users[n]) != 1 or n in graph.outputs for n in (*chain[1:], *passed)):
        return None
    assert below is not None
    x = apply_chain(chain, below)
    for n in reversed(passed):
        x = n.with_operands((x,))
    return x
