"""How index expressions change with one variable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from math import gcd

from compiler.ir.symbolic.index_atoms import Atom, Var, terms
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, var, variables


@lru_cache(maxsize=65536)
def coefficient(d: Dim, name: str) -> int | None:
    """The integer step of `d` per unit of variable `name`; None where `d` is not linear in it."""
    step = 0
    for mono, coef in terms(d):
        if mono == (Var(name),):
            step = coef
        elif any(name in variables(_monomial((a,))) for a in mono):
            return None
    return step


def stride(d: Dim, name: str) -> Dim | None:
    """The step of `d` per unit of variable `name`, in numbers and sizes; None where `d` is not linear in it."""
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
    """The widest panels that hold what lies side by side along variable `name`, and that begin at multiples of their width.

    It divides `width`; 0 stands for any.  None where `d` does not go from each place to the next.
    """
    if coefficient(d, name) != 1:
        return None
    return reduce(gcd, (c for _, c in terms(d - var(name))), width)


def _monomial(atoms: Sequence[Atom]) -> Dim:
    return IndexExpr(((tuple(atoms), 1),)) if atoms else 1
