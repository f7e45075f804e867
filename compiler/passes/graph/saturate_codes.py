"""Clamps of codes in integers, where CPUs saturate as they narrow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node
from compiler.ir.graph.structure import is_cast, primitive_of
from compiler.ir.types import f32, i32, u8
from compiler.passes.affine_sum import (
    ONE,
    ZERO,
    AffineSum,
    Numbers,
    affine_sum,
    binary_with_constant,
    constant_of,
    is_read_once,
)
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources

INFINITY = np.float64(np.inf)

MAX_ZERO_POINT = 1 << 16
"""Largest zero point that is added in integers: far from the end of i32."""

MAX_ROUNDED = (1 << 31) - 2 * MAX_ZERO_POINT
"""Floats up to this size become i32, and a zero point can be added."""


@register
@dataclass(frozen=True)
class SaturateCodes(GraphPass):
    """Clamp codes as integers, which CPUs do as they narrow them; floats are clamped from above alone.

    %r = round %x  %z = add %r, 3.0  %q = cast (minimum (maximum %z, 0.0), 255.0) {dtype=u8}
      ->
    %r = cast (round (minimum %x, 252.0)) {dtype=i32}  %q = cast (minimum (maximum (add %r, 3), 0), 255) {dtype=u8}

    The bound from above keeps integers within 32 bits; floats below them, and NaN, become the least integer and code 0.
    A ReLU is such a clamp too.  Signed codes are left alone: NaN is 0 there, not the least code.  Between a sum of integers
    and the codes, constant factors and summands become one multiply-add: a value near the middle of two codes may become the
    other one.
    """

    name = "saturate-codes"

    def run(self, ir: Graph, context: Context) -> Graph:
        bytes_ = [n for n in ir.nodes if not isinstance(n.result_type, tuple) and n.dtype == u8]
        constants = constant_sources(ir) if bytes_ else {}
        new: dict[Node, Node] = {}
        for n in bytes_:
            if n in constants:
                continue
            codes = saturated(ir, n, constants, fuses=context.machine.fma_instructions == 1)
            if codes is not None and context.may_apply(self, "clamped as integers", n):
                new[n] = codes.with_name(n.name).with_loc(n.loc)
        return ir.replace_nodes(new)


@dataclass(frozen=True)
class ClampedValue:
    """min(max(x * factor + shift, low), high).  The factor is positive, and no low bound is above a high one."""

    x: Node
    factor: Numbers = ONE
    shift: Numbers = ZERO
    low: Numbers = -INFINITY
    high: Numbers = INFINITY

    def of_operand(self, primitive: str, constant: Numbers, x: Node) -> ClampedValue | None:
        """Return the value as a function of `x`, if self.x is `primitive` of x and of a constant; None if it has another form."""
        if primitive == "mul" and (constant > 0).all():
            return replace(self, x=x, factor=self.factor * constant)
        if primitive == "add":
            return replace(self, x=x, shift=self.shift + self.factor * constant)
        bound = self.factor * constant + self.shift
        if primitive == "max" and (bound <= self.high).all():
            return replace(self, x=x, low=np.maximum(self.low, bound))
        if primitive == "min" and (bound >= self.low).all():
            return replace(self, x=x, high=np.minimum(self.high, bound))
        return None


def saturated(graph: Graph, n: Node, constants: Collection[Node], *, fuses: bool) -> Node | None:
    """Return codes `n` clamped as integers; None if they are not rounded, or not clamped to the whole range of u8.

    A factor and a summand are one `fma` if the machine `fuses` them.
    """
    if not is_cast(n) or n.operands[0].dtype != f32:
        return None
    codes = _through_constants(ClampedValue(n.operands[0]), constants)
    if primitive_of(codes.x) != "round" or codes.shift.size != 1 or (codes.factor != 1).any():
        return None
    zero = codes.shift.item()
    if zero < 0:
        return None
    value = ClampedValue(codes.x.operands[0])
    scaled = _through_constants(value, constants, graph)
    total = _sum_of_integers(graph, scaled, constants)
    if total is None:
        scaled, total = value, AffineSum(((value.x, ONE),))
    low, high = (np.round(bound) + zero for bound in (scaled.low, scaled.high))
    if (low > 0).any() or (np.maximum(low, codes.low) != 0).any() or (np.minimum(high, codes.high) > 255).any():
        return None
    bound = np.where(high <= codes.high, scaled.high, np.minimum(scaled.high, np.floor(codes.high) - zero))
    return _clamped(total, bound, int(zero), fuses)


def _through_constants(value: ClampedValue, constants: Collection[Node], graph: Graph | None = None) -> ClampedValue:
    """Return `value` as a function of what is below all constants; below nodes that others read too only without a `graph`."""
    while True:
        primitive, constant, x = binary_with_constant(value.x, constants)
        if x is None or (graph and not is_read_once(graph, value.x)):
            return value
        inner = value.of_operand(primitive, constant, x)
        if inner is None or (graph is None and not is_zero_point(inner.shift)):
            return value
        value = inner


def is_zero_point(shift: Numbers) -> bool:
    """Return True for integers that floats and i32 add without rounding or wrapping."""
    return bool(((np.abs(shift) <= MAX_ZERO_POINT) & (shift == np.round(shift))).all())


def _sum_of_integers(graph: Graph, value: ClampedValue, constants: Collection[Node]) -> AffineSum | None:
    """Return a value before its clamps as a sum of scaled integers and others; None if it adds no integers."""
    scaled = affine_sum(graph, value.x, constants).scaled(value.factor, value.shift)
    return scaled.with_integer_shifts(graph, constants) if scaled.has_integers else None


def _clamped(total: AffineSum, high: Numbers, zero: int, fuses: bool) -> Node:
    """Return the codes of a sum that is at most `high` and is clamped as integers.

    Where no sum is beyond i32, integers alone are clamped to the greatest code.
    """
    x = total.compute(fuses=fuses)
    if total.bound >= MAX_ROUNDED or (np.round(high) + zero < 255).any():
        x = ops.minimum(x, constant_of(high))
    x = ops.cast(ops.round_(x), dtype=i32)
    x = ops.add(x, zero) if zero else x
    return ops.cast(ops.minimum(ops.maximum(x, 0), 255), dtype=u8)
