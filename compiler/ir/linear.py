"""How index expressions change with one variable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from compiler.ir.atoms import Atom, Var, terms
from compiler.ir.index import Dim, Index, variables


@lru_cache(maxsize=65536)
def coefficient(d: Dim, name: str) -> int | None:
    """The integer step of `d` per unit of variable `name`; None where `d` is not linear in it."""
    step = 0
    for mono, coef in terms(d):
        if mono == (Var(name),):
            step = coef
        elif any(name in variables(_product((a,))) for a in mono):
            return None
    return step


def step(d: Dim, name: str) -> Dim | None:
    """The step of `d` per unit of variable `name`, in numbers and sizes; None where `d` is not linear in it."""
    total: Dim = 0
    for mono, coef in terms(d):
        if Var(name) not in mono:
            if any(name in variables(_product((a,))) for a in mono):
                return None
            continue
        others = list(mono)
        others.remove(Var(name))
        if any(variables(_product((a,))) for a in others):
            return None
        total = total + _product(others) * coef
    return total


def _product(atoms: Sequence[Atom]) -> Dim:
    return Index(((tuple(atoms), 1),)) if atoms else 1
