"""Values for the names in index expressions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from compiler.errors import ArgumentError
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, FloorDiv, Min, Var, map_atoms, operands
from compiler.ir.symbolic.index_expr import Dim, dynamic_sizes, evaluate, substitute, var, variables


def evaluate_broadcast(d: Dim, values: Mapping[str, Any]) -> Any:
    """What `d` denotes where variables stand for integers or integer arrays, which broadcast."""

    def atom(a: Atom) -> Any:
        if isinstance(a, (Var, DynamicSize)):
            return values[a.name]
        x, y = (evaluate_broadcast(part, values) for part in operands(a))
        return np.minimum(x, y) if isinstance(a, Min) else x // y if isinstance(a, FloorDiv) else x % y

    return map_atoms(d, atom)


def bind_symbols(dim_values: Iterable[tuple[Dim, int]]) -> dict[str, int]:
    """The variables for which every dimension has its size; ArgumentError where there are none.

    Each variable must occur in some dimension that is linear in it, and where nothing else is unknown.
    """
    values: dict[str, int] = {}
    pairs = [(_sizes_to_variables(d), size) for d, size in dim_values]
    for d, size in sorted(pairs, key=lambda p: (_is_nonlinear(p[0]), len(variables(p[0])))):
        rest = substitute(d, values)
        names = sorted(variables(rest))
        step = coefficient(rest, names[0]) if len(names) == 1 else None
        if names and not step:
            raise ArgumentError(f"the size {d} does not determine {', '.join(names)}")
        base = evaluate(substitute(rest, dict.fromkeys(names, 0)), {})
        if base != size if not step else (size - base) % step:
            known = ", ".join(f"{n} = {values[n]}" for n in sorted(variables(d) & set(values)))
            raise ArgumentError(f"a dimension of size {size} does not fit {d}" + (f" where {known}" if known else ""))
        values.update({name: (size - base) // step for name in names if step})
    return values


def _is_nonlinear(d: Dim) -> bool:
    """Whether sizes cannot be read off a dimension, as from a quotient."""
    return any(coefficient(d, v) is None for v in variables(d))


def _sizes_to_variables(d: Dim) -> Dim:
    """`d` with its sizes as variables."""
    return substitute(d, {s.name: var(s.name) for s in dynamic_sizes(d)})
