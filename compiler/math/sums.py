"""Sums and products of two terms, with what rounding loses."""

from __future__ import annotations

from compiler.ir.scalar import Expr, fma


def two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`a + b` rounded, and what rounding lost: together exactly `a + b` (Knuth).  6 operations."""
    total = a + b
    b_part = total - a
    a_part = total - b_part
    return total, (a - a_part) + (b - b_part)


def fast_two_sum(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`two_sum` where `a` is 0 or not smaller than `b` in magnitude (Dekker 1971).  3 operations."""
    total = a + b
    return total, b - (total - a)


def two_product(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """`a b` rounded, and what rounding lost.  2 operations."""
    product = a * b
    return product, fma(a, b, -product)
