"""Symbolic sizes: PyTorch's sympy expressions as `Dim`s."""

from __future__ import annotations

from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Identity, Mod, ModularIndexing, PythonMod

from compiler.frontend.registry import Refusal
from compiler.ir.index import Dim, floordiv, mod, product, var


def to_dim(value: int | torch.SymInt) -> Dim:
    """`value` as an int or an index expression; Refusal where it has no such form."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        return int(expression) if expression.is_Integer else from_sympy(expression)
    return int(value)


def to_bounds(values: Any) -> tuple[int, int]:
    """PyTorch's range of a size, inclusive, no wider than 0..2^31."""
    return int(max(values.lower, 0)), int(min(values.upper, 1 << 31))


def from_sympy(e: Any) -> Dim:
    """An integer sympy expression as a `Dim`; Refusal for functions that index expressions lack."""
    if e.is_Integer:
        return int(e)
    if e.is_Symbol:
        if str(e).startswith("u"):
            raise Refusal(f"the size {e} depends on data")
        return var(str(e))
    args = [from_sympy(a) for a in e.args]
    if isinstance(e, sympy.Add):
        return reduce(lambda a, b: a + b, args)
    if isinstance(e, sympy.Mul):
        return product(args)
    if isinstance(e, sympy.Pow) and isinstance(args[1], int) and args[1] >= 0:
        return product([args[0]] * args[1])
    if isinstance(e, (FloorDiv, CleanDiv)):
        return floordiv(args[0], args[1])
    if isinstance(e, (Mod, PythonMod)):
        return mod(args[0], args[1])
    if isinstance(e, ModularIndexing):
        return mod(floordiv(args[0], args[1]), args[2])
    if isinstance(e, Identity):
        return args[0]
    raise Refusal(f"the size {e} is no sum, product, quotient or remainder of sizes")
