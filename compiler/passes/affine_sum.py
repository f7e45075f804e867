"""Sums of scaled values: additions and multiplications by constants as one list of terms."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.analysis.contraction_nodes import is_contraction_node
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import Node, constant_node, scalar_constant
from compiler.ir.graph.structure import Elementwise, Reduction, elementwise_expr, highest, is_cast, lowest, primitive_of
from compiler.ir.scalar import Const, PrimitiveCall, Ref
from compiler.ir.symbolic.index_expr import product
from compiler.ir.types import f32, i32
from compiler.passes.graph.fold import known_values

Numbers = NDArray[np.float64] | np.float64
"""A constant number, or one for each channel."""

ZERO, ONE = np.float64(0), np.float64(1)

EXACT_UNITS = 1 << 14
"""Integers up to this size, scaled to codes, are rounded by f32 to a 1024th of a code."""


@dataclass(frozen=True)
class AffineSum:
    """The sum of x * factor over the `terms` (x, factor), and of `shift`."""

    terms: tuple[tuple[Node, Numbers], ...]
    shift: Numbers = ZERO

    def __add__(self, other: AffineSum) -> AffineSum:
        return AffineSum(self.terms + other.terms, self.shift + other.shift)

    def scaled(self, factor: Numbers, shift: Numbers = ZERO) -> AffineSum:
        """Return the sum times `factor` plus `shift`."""
        return AffineSum(tuple((x, f * factor) for x, f in self.terms), self.shift * factor + shift)

    @property
    def has_integers(self) -> bool:
        """True if a term is a converted integer."""
        return any(converted_integers(x) is not None for x, _ in self.terms)

    @property
    def bound(self) -> float:
        """The largest absolute value that the dtypes of the terms allow; infinite with a float among them."""
        return float(np.abs(self.shift).max() + sum(_bound(x) * np.abs(f).max() for x, f in self.terms))

    def with_integer_shifts(self, graph: Graph, constants: Collection[Node]) -> AffineSum:
        """Return the sum with constants that are subtracted from integers, such as zero points, in `shift`.

        They stay where i32 would wrap, and where f32 would round the integers by more than a 1024th.
        """
        result = AffineSum((), self.shift)
        for x, factor in self.terms:
            result += _without_integer_shift(graph, x, factor, constants)
        return result

    def compute(self, *, fuses: bool) -> Node:
        """Return the sum as a node of f32, of multiply-adds if the machine `fuses` them."""
        total: Node | None = None if (self.shift == 0).all() else constant_of(self.shift)
        for x, factor in reversed(self.terms):
            if (factor == 1).all():
                total = x if total is None else ops.add(x, total)
            elif total is None:
                total = ops.mul(x, constant_of(factor))
            elif fuses:
                total = ops.fma(x, constant_of(factor), total)
            else:
                total = ops.add(ops.mul(x, constant_of(factor)), total)
        assert total is not None
        return total


def affine_sum(graph: Graph, n: Node, constants: Collection[Node]) -> AffineSum:
    """Return an f32 node as a sum of scaled values, through nodes that are read once; one term if `n` is not."""
    whole = AffineSum(((n, ONE),))
    if not is_read_once(graph, n):
        return whole
    primitive, constant, x = binary_with_constant(n, constants)
    if x is not None and primitive in ("add", "mul"):
        below = affine_sum(graph, x, constants)
        return below.scaled(constant) if primitive == "mul" else below.scaled(ONE, constant)
    if _adds_values(n, constants):
        first, second = (affine_sum(graph, o, constants) for o in n.operands)
        return first + second.scaled(np.float64(-1 if primitive_of(n) == "sub" else 1))
    return whole


def converted_integers(x: Node) -> Node | None:
    """Return the integers that a term converts, or None."""
    return x.operands[0] if is_cast(x) and x.operands[0].dtype.is_integer else None


def _adds_values(n: Node, constants: Collection[Node]) -> bool:
    """Return True if `n` adds or subtracts two f32 values of its shape."""
    is_sum = n.dtype == f32 and primitive_of(n) in ("add", "sub")
    return is_sum and all(o.shape == n.shape and o not in constants for o in n.operands)


def is_read_once(graph: Graph, n: Node) -> bool:
    """Return True if one node reads `n`, which is no output."""
    return len(graph.users.get(n, ())) == 1 and n not in graph.outputs


def binary_with_constant(n: Node, constants: Collection[Node]) -> tuple[str, Numbers, Node | None]:
    """Return the primitive of an f32 node of a constant and another value of its shape, which come last; None if it has none.

    A constant that is subtracted is one that is added.
    """
    none = ("", ZERO, None)
    e = elementwise_expr(n) if isinstance(n.structure, Elementwise) and n.dtype == f32 else None
    if not isinstance(e, PrimitiveCall) or len(e.operands) != 2:
        return none
    sides: list[Node | Numbers] = []
    for a in e.operands:
        if isinstance(a, Const):
            sides.append(np.float64(a.value))
        elif isinstance(a, Ref):
            operand = n.operands[int(a.name[1:])]
            sides.append(_numbers(operand) if operand in constants else operand)
    match e.primitive, sides:
        case "sub", [Node() as x, np.ndarray() | np.float64() as constant]:
            return ("add", -constant, x) if x.shape == n.shape else none
        case name, (
            [Node() as x, np.ndarray() | np.float64() as constant]
            | [np.ndarray() | np.float64() as constant, Node() as x]
        ):
            return (name, constant, x) if x.shape == n.shape and name in ("add", "mul", "max", "min") else none
    return none


def constant_of(values: Numbers) -> Node:
    """Return a constant of f32; one number if all are the same."""
    array = np.asarray(values, np.float32)
    return scalar_constant(array.flat[0].item()) if array.size and np.ptp(array) == 0 else constant_node(array)


def _numbers(constant: Node) -> Numbers:
    """Return the values of a node that depends on constants alone."""
    values = known_values(constant)
    assert values is not None
    return np.asarray(values, np.float64)


def _bound(x: Node) -> float:
    """Return the largest absolute value of a term: of the integers that it converts, or infinity."""
    integers = converted_integers(x)
    return float("inf") if integers is None else integer_bound(integers)


def integer_bound(n: Node) -> int:
    """Return the largest absolute value of integers: of the products that they add, or of their dtype."""
    limit = max(abs(int(lowest(n.dtype))), int(highest(n.dtype)))
    if not is_contraction_node(n) or n.dtype != i32:
        return limit
    assert isinstance(n.structure, Reduction)
    terms = product(n.structure.domain(n).extents)
    lhs, rhs = (integer_bound(o) for o in n.operands)
    return min(limit, terms * lhs * rhs) if isinstance(terms, int) else limit


def _without_integer_shift(graph: Graph, x: Node, factor: Numbers, constants: Collection[Node]) -> AffineSum:
    """Return the term x * factor, where x = cast<f32>(integer - constant), as a scaled integer and a shift; unchanged if it is none."""
    unchanged = AffineSum(((x, factor),))
    inner = converted_integers(x)
    if inner is None or inner.dtype != i32 or primitive_of(inner) != "sub":
        return unchanged
    if not is_read_once(graph, inner) or not is_read_once(graph, x):
        return unchanged
    integers, constant = inner.operands
    if constant not in constants or integers.dtype != i32 or integers.shape != inner.shape:
        return unchanged
    shift, bound = _numbers(constant), integer_bound(integers)
    if bound + np.abs(shift).max() >= 1 << 31 or bound * np.abs(factor).max() > EXACT_UNITS:
        return unchanged
    return AffineSum(((ops.cast(integers, dtype=f32), factor),), -shift * factor)
