"""Values for the names in index expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from compiler.errors import ArgumentError
from compiler.ir.atoms import Atom, FloorDiv, Min, Size, Var, operands, rebuild
from compiler.ir.index import Dim, evaluate, sizes, substitute, var, variables
from compiler.ir.linear import coefficient


def evaluate_arrays(d: Dim, values: Mapping[str, Any]) -> Any:
    """What `d` denotes where variables stand for integers or integer arrays, which broadcast."""

    def atom(a: Atom) -> Any:
        if isinstance(a, (Var, Size)):
            return values[a.name]
        x, y = (evaluate_arrays(part, values) for part in operands(a))
        return np.minimum(x, y) if isinstance(a, Min) else x // y if isinstance(a, FloorDiv) else x % y

    return rebuild(d, atom)


def bind_symbols(found: Iterable[tuple[Dim, int]]) -> dict[str, int]:
    """The variables for which every dimension has its size; ArgumentError where there are none.

    Each variable must occur in some dimension that is linear in it alone.
    """
    values: dict[str, int] = {}
    pairs = [(_opened(d), size) for d, size in found]
    for d, size in pairs:
        names = variables(d)
        if len(names) == 1 and (step := coefficient(d, name := next(iter(names)))):
            values.setdefault(name, (size - evaluate(substitute(d, {name: 0}), {})) // step)
    for d, size in pairs:
        if not variables(d) <= set(values):
            raise ArgumentError(f"the size {d} does not determine {', '.join(sorted(variables(d) - set(values)))}")
        if evaluate(d, values) != size:
            known = ", ".join(f"{n} = {values[n]}" for n in sorted(variables(d)))
            raise ArgumentError(f"a dimension of size {size} does not fit {d}" + (f" where {known}" if known else ""))
    return values


def _opened(d: Dim) -> Dim:
    """`d` with its sizes as variables."""
    return substitute(d, {s.name: var(s.name) for s in sizes(d)})
