"""Values of symbols: evaluate index expressions on arrays, replace symbols in attributes, solve for those in shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from compiler.errors import ArgumentError
from compiler.ir.symbolic.affine import coefficient
from compiler.ir.symbolic.index_atoms import Atom, DynamicSize, FloorDiv, Min, Var, map_atoms, operands
from compiler.ir.symbolic.index_expr import Dim, IndexExpr, dynamic_sizes, evaluate, substitute, var, variables


def evaluate_broadcast(d: Dim, values: Mapping[str, Any]) -> Any:
    """Evaluate `d` with symbols bound to integers or integer arrays, which broadcast."""

    def atom(a: Atom) -> Any:
        if isinstance(a, (Var, DynamicSize)):
            return values[a.name]
        x, y = (evaluate_broadcast(part, values) for part in operands(a))
        return np.minimum(x, y) if isinstance(a, Min) else x // y if isinstance(a, FloorDiv) else x % y

    return map_atoms(d, atom)


def substitute_symbols(value: object, values: Mapping[str, Dim]) -> object:
    """Replace symbols in an attribute value: an index expression, or a tuple that contains some."""
    if isinstance(value, tuple):
        return tuple(substitute_symbols(v, values) for v in value)
    return substitute(value, values) if isinstance(value, IndexExpr) else value


def bind_symbols(dim_values: Iterable[tuple[Dim, int]]) -> dict[str, int]:
    """Return the values of the symbols for which every (dimension, size) pair is equal.

    ArgumentError if the pairs contradict each other or do not determine a symbol: each symbol must occur in a dimension
    that is affine in it and whose other symbols are determined by other pairs.
    """
    values: dict[str, int] = {}
    pairs = [(_sizes_to_variables(d), size) for d, size in dim_values]
    for d, size in sorted(pairs, key=lambda p: (_is_nonlinear(p[0]), len(variables(p[0])))):
        reduced = substitute(d, values)
        names = sorted(variables(reduced))
        stride = coefficient(reduced, names[0]) if len(names) == 1 else None
        if names and not stride:
            raise ArgumentError(f"cannot solve for {', '.join(names)} from dimension {d}")
        offset = evaluate(substitute(reduced, dict.fromkeys(names, 0)), {})
        if offset != size if not stride else (size - offset) % stride:
            bound = ", ".join(f"{n} = {values[n]}" for n in sorted(variables(d) & set(values)))
            raise ArgumentError(f"dimension size {size} does not match {d}" + (f" with {bound}" if bound else ""))
        values.update({name: (size - offset) // stride for name in names if stride})
    return values


def _is_nonlinear(d: Dim) -> bool:
    """Return True if `d` is not affine in some variable, as a quotient."""
    return any(coefficient(d, v) is None for v in variables(d))


def _sizes_to_variables(d: Dim) -> Dim:
    """Replace the dynamic sizes in `d` by variables of the same names."""
    return substitute(d, {s.name: var(s.name) for s in dynamic_sizes(d)})
