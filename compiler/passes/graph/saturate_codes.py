"""Clamps of codes in integers, where CPUs saturate as they narrow."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, scalar_constant
from compiler.ir.graph.structure import is_cast, primitive_of
from compiler.ir.types import f32, i32, u8
from compiler.passes.base import Context, GraphPass, register
from compiler.passes.graph.fold import constant_sources, constant_values

Numbers = NDArray[np.float64] | np.float64
"""A constant number, or one for each channel."""

ZERO, ONE, INFINITY = np.float64(0), np.float64(1), np.float64(np.inf)

MAX_ZERO_POINT = 1 << 16
"""Largest zero point that is added in integers: far from the end of i32."""


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
    before = _of_integers(graph, ClampedValue(codes.x.operands[0]), constants)
    low, high = (np.round(bound) + zero for bound in (before.low, before.high))
    if (low > 0).any() or (np.maximum(low, codes.low) != 0).any() or (np.minimum(high, codes.high) > 255).any():
        return None
    bound = np.where(high <= codes.high, before.high, np.minimum(before.high, np.floor(codes.high) - zero))
    return _clamped(before, bound, int(zero), fuses)


def _through_constants(value: ClampedValue, constants: Collection[Node], graph: Graph | None = None) -> ClampedValue:
    """Return `value` as a function of what is below all constants; below nodes that others read too only without a `graph`."""
    while True:
        primitive, constant, x = _binary(value.x, constants)
        if x is None or constant is None or (graph and (len(graph.users[value.x]) != 1 or value.x in graph.outputs)):
            return value
        inner = value.of_operand(primitive, _numbers(constant), x)
        if inner is None or (graph is None and not is_zero_point(inner.shift)):
            return value
        value = inner


def is_zero_point(shift: Numbers) -> bool:
    """Return True for integers that floats and i32 add without rounding or wrapping."""
    return bool(((np.abs(shift) <= MAX_ZERO_POINT) & (shift == np.round(shift))).all())


def _of_integers(graph: Graph, value: ClampedValue, constants: Collection[Node]) -> ClampedValue:
    """Return `value` as a function of the sum of integers that it scales; unchanged if it does not."""
    scaled = _through_constants(value, constants, graph)
    return scaled if is_cast(scaled.x) and scaled.x.operands[0].dtype.is_integer else value


def _clamped(value: ClampedValue, high: Numbers, zero: int, fuses: bool) -> Node:
    """Return the codes of a scaled value that is at most `high` and is clamped as integers."""
    x = value.x
    if fuses and (value.factor != 1).any() and (value.shift != 0).any():
        x = ops.fma(x, _constant(value.factor), _constant(value.shift))
    else:
        x = ops.mul(x, _constant(value.factor)) if (value.factor != 1).any() else x
        x = ops.add(x, _constant(value.shift)) if (value.shift != 0).any() else x
    x = ops.cast(ops.round_(ops.minimum(x, _constant(high))), dtype=i32)
    x = ops.add(x, zero) if zero else x
    return ops.cast(ops.minimum(ops.maximum(x, 0), 255), dtype=u8)


def _numbers(constant: Node) -> Numbers:
    """Return the values of a node that depends on constants alone."""
    values = constant_values([constant])[constant].attrs["value"].numpy_values
    return np.asarray(values, np.float64)


def _constant(values: Numbers) -> Node:
    """Return a constant of f32; one number if all are the same."""
    array = np.asarray(values, np.float32)
    return scalar_constant(array.flat[0].item()) if array.size and np.ptp(array) == 0 else constant_node(array)


def _binary(n: Node, constants: Collection[Node]) -> tuple[str, Node | None, Node | None]:
    """Return the primitive of `n`, its constant operand and the other one, which has the shape of `n`; None where it has none."""
    known = [o for o in n.operands if o in constants]
    varying = [o for o in n.operands if o not in constants and o.shape == n.shape]
    is_binary = len(known) == len(varying) == 1 and len(n.operands) == 2 and n.dtype == f32
    return (primitive_of(n), known[0], varying[0]) if is_binary else ("", None, None)
