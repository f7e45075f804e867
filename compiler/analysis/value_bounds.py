"""Bounds of integer values, from the conditions under which they are selected.

    %inside = (%x >= 0.0) & (%x < 32.0)      %row = where(%inside, cast<i64>(%x), 0)      %row is in 0..31

Conditions that hold bound the integer part of what they compare, and exclude NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, inf, isfinite, trunc

from compiler.ir.scalar import Const, Expr, PrimitiveCall, Ref
from compiler.ir.types import i32, i64

Bounds = tuple[float, float]
"""Lowest and highest value; infinite if unknown."""

UNKNOWN: Bounds = (-inf, inf)

FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}
"""The comparison of two exchanged operands."""


MAX_DEPTH = 8
"""Operations and definitions that are followed into an expression; bounds compile time."""


@dataclass(frozen=True)
class ValueBounds:
    """Bounds of expressions over names with the values `definitions`, where `facts` hold.

    Facts are bounds of the integer parts of expressions.
    """

    definitions: Mapping[str, Expr]
    facts: Mapping[Expr, Bounds] = field(default_factory=dict)

    def of(self, e: Expr, depth: int = MAX_DEPTH) -> Bounds:
        """Return the bounds of an integer; those of a float are facts about its integer part."""
        found = UNKNOWN if e.dtype.is_float or not depth else self._computed(e, depth - 1)
        return intersection(found, self.facts.get(e, UNKNOWN))

    def _computed(self, e: Expr, depth: int) -> Bounds:
        """Return the bounds that follow from the operands."""
        match e:
            case Const(value=value):
                return value, value
            case Ref(name=name) if name in self.definitions:
                return self.of(self.definitions[name], depth)
            case PrimitiveCall(primitive="where", operands=(condition, a, b)):
                return union(self._where(condition, depth).of(a, depth), self.of(b, depth))
            case PrimitiveCall(primitive="cast", operands=(x,)) if e.dtype in (i32, i64):
                found, limit = self.of(x, depth), 1 << e.dtype.bits - 1
                return found if -limit <= found[0] and found[1] < limit else UNKNOWN
            case PrimitiveCall(primitive="and", operands=(_, Const(value=mask)) | (Const(value=mask), _)) if mask >= 0:
                return 0, mask
            case PrimitiveCall(primitive="max" | "min" as name, operands=(a, b)):
                choose = max if name == "max" else min
                (low, high), (other_low, other_high) = self.of(a, depth), self.of(b, depth)
                return choose(low, other_low), choose(high, other_high)
        return UNKNOWN

    def _where(self, condition: Expr, depth: int) -> ValueBounds:
        """Return the bounds where `condition` holds as well."""
        facts = dict(self.facts)
        for e, bounds in self._implied(condition, depth):
            facts[e] = intersection(facts.get(e, UNKNOWN), bounds)
        return ValueBounds(self.definitions, facts)

    def _implied(self, condition: Expr, depth: int) -> Iterator[tuple[Expr, Bounds]]:
        """Yield the bounds that `condition` implies for the integer parts of what it compares with constants."""
        if not depth:
            return
        match condition:
            case Ref(name=name) if name in self.definitions:
                yield from self._implied(self.definitions[name], depth - 1)
            case PrimitiveCall(primitive="and", operands=(a, b)):
                yield from self._implied(a, depth - 1)
                yield from self._implied(b, depth - 1)
            case PrimitiveCall(primitive=name, operands=(x, Const(value=limit))) if name in FLIPPED:
                yield x, compared(name, limit, x.dtype.is_float)
            case PrimitiveCall(primitive=name, operands=(Const(value=limit), x)) if name in FLIPPED:
                yield x, compared(FLIPPED[name], limit, x.dtype.is_float)


def compared(comparison: str, limit: float, is_float: bool) -> Bounds:
    """Return the bounds of the integer part of a value that compares so with `limit`."""
    if not isfinite(limit):
        return UNKNOWN
    whole = trunc(limit)
    below = whole if is_float and limit <= 0 else ceil(limit) - 1  # -0.5 < 0 has the integer part 0
    above = whole if is_float and limit >= 0 else floor(limit) + 1
    bounds = {"lt": (-inf, below), "le": (-inf, whole), "gt": (above, inf), "ge": (whole, inf), "eq": (whole, whole)}
    return bounds[comparison]


def union(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of what is within either."""
    return min(a[0], b[0]), max(a[1], b[1])


def intersection(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of what both bound."""
    return max(a[0], b[0]), min(a[1], b[1])
