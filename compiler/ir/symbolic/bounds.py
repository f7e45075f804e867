"""Constant and symbolic bounds of index expressions."""

from __future__ import annotations

from compiler.ir.symbolic.index_expr import Bounds, Dim, IndexExpr, dynamic_sizes, interval, symbolic_bound, variables


def bounds_of_expr(d: Dim, bounds: Bounds) -> tuple[Dim, Dim] | None:
    """Return inclusive bounds of `d` in constants and dynamic sizes, or None if a variable in it is unbounded."""
    if dynamic_sizes(d) or any(isinstance(b, IndexExpr) for v in variables(d) for b in bounds.get(v, ())):
        low, high = symbolic_bound(d, bounds, 0), symbolic_bound(d, bounds, 1)
        if low is not None and high is not None and not variables(low) and not variables(high):
            return low, high
    return interval(d, bounds)


def is_provably_less(a: Dim, b: Dim) -> bool:
    """Return True if `a` < `b` for all values of the sizes in them."""
    return is_provably_at_most(a + 1, b)


def is_provably_at_most(a: Dim, b: Dim) -> bool:
    """Return True if `a` <= `b` for all values of the sizes in them."""
    gap = lower_bound(b - a)
    return gap is not None and gap >= 0


def lower_bound(d: Dim) -> int | None:
    """Return a constant lower bound of `d`, or None if a variable in it is unbounded."""
    limits = interval(d, {})
    return limits[0] if limits else None
