"""Symbolic sizes: PyTorch's sympy expressions as `Dim`s, and numbers computed from sizes as nodes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as of
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Identity, Mod, ModularIndexing, PythonMod

from compiler.frontend.promotion import as_node
from compiler.frontend.registry import ConversionError
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv, maximum, minimum, mod, product, var
from compiler.ir.types import f64

ROUNDED_QUOTIENTS: dict[Any, Callable[[Dim, Dim], Dim]] = {
    of.TruncToInt: floordiv, of.FloorToInt: floordiv, of.CeilToInt: ceildiv,
}  # fmt: skip
"""How a quotient that is not negative becomes a size."""

FLOAT_OPS: dict[Any, Op] = {
    sympy.Add: ops.add, sympy.Mul: ops.mul, of.FloatTrueDiv: ops.div, of.IntTrueDiv: ops.div, of.FloatPow: ops.pow_,
    of.OpaqueUnaryFn_sqrt: ops.sqrt, of.OpaqueUnaryFn_exp: ops.exp, of.OpaqueUnaryFn_log: ops.log,
}  # fmt: skip
"""What floats are computed by from others; sums and products take any number of them."""


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
        return var(str(e))
    if isinstance(e, tuple(ROUNDED_QUOTIENTS)):
        return _rounded_to_dim(e)
    args = [from_sympy(a) for a in e.args]
    if isinstance(e, sympy.Add):
        return reduce(lambda a, b: a + b, args)
    if isinstance(e, sympy.Mul):
        return product(args)
    if isinstance(e, (sympy.Pow, of.PowByNatural)) and isinstance(args[1], int) and args[1] >= 0:
        return product([args[0]] * args[1])
    if isinstance(e, (FloorDiv, CleanDiv)):
        return floordiv(args[0], args[1])
    if isinstance(e, (Mod, PythonMod)):
        return mod(args[0], args[1])
    if isinstance(e, ModularIndexing):
        return mod(floordiv(args[0], args[1]), args[2])
    if isinstance(e, (sympy.Min, of.Min)):
        return reduce(minimum, args)
    if isinstance(e, (sympy.Max, of.Max)):
        return reduce(maximum, args)
    if isinstance(e, Identity):
        return args[0]
    raise ConversionError(f"the size {e} is no sum, product, quotient or remainder of sizes")


def _rounded_to_dim(e: Any) -> Dim:
    """A float that is rounded to a size, where it is a quotient of sizes or a size times a number: what integers make of it."""
    (inner,) = e.args
    scale, parts = 1.0, []
    for part in inner.args if isinstance(inner, sympy.Mul) else (inner,):
        if part.is_number:
            scale *= float(part)
        else:
            parts.append(part)
    (part,) = parts if len(parts) == 1 else (sympy.nan,)
    if scale >= 0 and part.args and all(a.is_nonnegative for a in part.args):
        if scale == 1.0 and isinstance(part, of.IntTrueDiv):
            return ROUNDED_QUOTIENTS[type(e)](*map(from_sympy, part.args))
        if isinstance(part, of.ToFloat) and (times := exact_ratio(scale)):
            return ROUNDED_QUOTIENTS[type(e)](from_sympy(part.args[0]) * times.numerator, times.denominator)
    raise ConversionError(f"the size {e} is rounded from a number that integers do not give")


def exact_ratio(scale: float) -> Fraction | None:
    """The fraction p/q for which int(n * scale) = n * p // q for every size n, in float64; None where there is none.

    A product lies within 2^-53 of itself of what it stands for.  If `scale` is nearer to p/q than 2^-54 of itself, it is n * p/q
    wherever that is an integer; and no integer lies between them else, q being small.
    """
    near = Fraction(scale).limit_denominator(1000)
    return near if abs(Fraction(scale) - near) <= near / 2**54 else None


def float_node(e: Any, integer_node: Callable[[Any], Node]) -> Node:
    """A sympy expression of floats as a node of rank 0, in f64; `whole` gives that of a symbol or an integer in it."""
    if e.is_number:
        return as_node(float(e), f64)
    if isinstance(e, of.ToFloat) or e.is_integer or e.is_Symbol:
        return ops.as_dtype(integer_node(e.args[0] if isinstance(e, of.ToFloat) else e), f64)
    compute = next((op for kind, op in FLOAT_OPS.items() if isinstance(e, kind)), None)
    if compute is None:
        raise ConversionError(f"the number {e} has no conversion")
    args = [float_node(a, integer_node) for a in e.args]
    return reduce(compute, args) if len(args) > 1 else compute(*args)
