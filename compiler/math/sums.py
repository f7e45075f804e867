"""Error-free sums and products of two terms."""

from __future__ import annotations

from compiler.ir.scalar import Expr, fma


def two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return `a + b` rounded, and its rounding error (Knuth's 2Sum).  6 operations."""
    total = a + b
    b_part = total - a
    a_part = total - b_part
    return total, (a - a_part) + (b - b_part)


def fast_two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return `two_sum(a, b)` if `a` is 0 or |a| >= |b| (Dekker 1971).  3 operations."""
    total = a + b
    return total, b - (total - a)


def two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return `a * b` rounded, and its rounding error.  2 operations."""
    product = a * b
    return product, fma(a, b, -product)
