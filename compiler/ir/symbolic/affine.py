"""Strides and contiguity of index expressions along one variable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from math import gcd

from compiler.ir.symbolic.index_atoms import Atom, Var, terms
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, var, variables


@lru_cache(maxsize=65536)
def coefficient(d: Dim, name: str) -> int | None:
    """Return the integer stride of `d` along variable `name`, or None if `d` is not affine in it."""
    result = 0
    for mono, coef in terms(d):
        if mono == (Var(name),):
            result = coef
        elif any(name in variables(_monomial((a,))) for a in mono):
            return None
    return result


def stride(d: Dim, name: str) -> Dim | None:
    """Return the stride of `d` along variable `name` in constants and dynamic sizes, or None if it is not affine."""
    total: Dim = 0
    for mono, coef in terms(d):
        if Var(name) not in mono:
            if any(name in variables(_monomial((a,))) for a in mono):
                return None
            continue
        others = list(mono)
        others.remove(Var(name))
        if any(variables(_monomial((a,))) for a in others):
            return None
        total = total + _monomial(others) * coef
    return total


def contiguous_width(d: Dim, name: str, width: int) -> int | None:
    """Return the widest aligned run of consecutive addresses of `d` along variable `name`, in elements.

    The result divides `width` (0: no limit; a result of 0 is unlimited).  None if the stride along `name` is not 1.
    """
    if coefficient(d, name) != 1:
        return None
    return reduce(gcd, (c for _, c in terms(d - var(name))), width)


def _monomial(atoms: Sequence[Atom]) -> Dim:
    return IndexExpr(((tuple(atoms), 1),)) if atoms else 1
