"""What index expressions may be at most and at least, in numbers and in sizes."""

from __future__ import annotations

from compiler.ir.symbolic.index_expr import Bounds, Dim, IndexExpr, dynamic_sizes, interval, symbolic_bound, variables


def bounds_of_expr(d: Dim, bounds: Bounds) -> tuple[Dim, Dim] | None:
    """The lowest and highest value of `d` in numbers and sizes, or None where a variable has none."""
    if dynamic_sizes(d) or any(isinstance(b, IndexExpr) for v in variables(d) for b in bounds.get(v, ())):
        low, high = symbolic_bound(d, bounds, 0), symbolic_bound(d, bounds, 1)
        if low is not None and high is not None and not variables(low) and not variables(high):
            return low, high
    return interval(d, bounds)


def is_provably_less(a: Dim, b: Dim) -> bool:
    """Whether `a` is less than `b` whatever the sizes in them."""
    return is_provably_at_most(a + 1, b)


def is_provably_at_most(a: Dim, b: Dim) -> bool:
    """Whether `a` is at most `b` whatever the sizes in them."""
    gap = lower_bound(b - a)
    return gap is not None and gap >= 0


def lower_bound(d: Dim) -> int | None:
    """What `d` is at least."""
    known = interval(d, {})
    return known[0] if known else None
