"""Conversion of PyTorch's sympy expressions: sizes become `Dim`s, floats computed from sizes become nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Identity, Mod, ModularIndexing, PythonMod

from compiler.frontend.promotion import as_node
from compiler.frontend.registry import ConversionError
from compiler.ir import ops
from compiler.ir.graph.node import Node, Op
from compiler.ir.symbolic.index_expr import Dim, ceildiv, floordiv, maximum, minimum, mod, product, var
from compiler.ir.types import f64

ROUNDED_QUOTIENTS: dict[Any, Callable[[Dim, Dim], Dim]] = {
    functions.TruncToInt: floordiv, functions.FloorToInt: floordiv, functions.CeilToInt: ceildiv,
}  # fmt: skip
"""Integer division for each function that rounds a non-negative quotient to a size."""

FLOAT_OPS: dict[Any, Op] = {
    sympy.Add: ops.add, sympy.Mul: ops.mul, functions.FloatTrueDiv: ops.div, functions.IntTrueDiv: ops.div, functions.FloatPow: ops.pow_,
    functions.OpaqueUnaryFn_sqrt: ops.sqrt, functions.OpaqueUnaryFn_exp: ops.exp, functions.OpaqueUnaryFn_log: ops.log,
}  # fmt: skip
"""Op for each function of floats."""


INTEGER_OPS: dict[Any, Op] = {
    sympy.Add: ops.add, sympy.Mul: ops.mul, FloorDiv: ops.floor_divide, CleanDiv: ops.floor_divide, PythonMod: ops.remainder, Mod: ops.remainder,
    sympy.Min: ops.minimum, functions.Min: ops.minimum, sympy.Max: ops.maximum, functions.Max: ops.maximum,
    sympy.Eq: ops.eq, sympy.Ne: ops.ne, sympy.Lt: ops.lt, sympy.Le: ops.le, sympy.Gt: ops.gt, sympy.Ge: ops.ge,
    sympy.And: ops.and_, sympy.Or: ops.or_, sympy.Not: ops.not_,
}  # fmt: skip
"""Op for each function of integers, and for each condition on them."""


def to_dim(value: int | torch.SymInt) -> Dim:
    """Return `value` as an int or an index expression; ConversionError if it has no such form."""
    if isinstance(value, torch.SymInt):
        expression = value.node.expr
        return int(expression) if expression.is_Integer else from_sympy(expression)
    return int(value)


def to_bounds(values: Any) -> tuple[int, int]:
    """Return PyTorch's range of a size, inclusive, clipped to 0..2^31."""
    return int(max(values.lower, 0)), int(min(values.upper, 1 << 31))


def from_sympy(e: Any) -> Dim:
    """Return an integer sympy expression as a `Dim`; ConversionError for functions that index expressions lack."""
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
    if isinstance(e, (sympy.Pow, functions.PowByNatural)) and isinstance(args[1], int) and args[1] >= 0:
        return product([args[0]] * args[1])
    if isinstance(e, (FloorDiv, CleanDiv)):
        return floordiv(args[0], args[1])
    if isinstance(e, (Mod, PythonMod)):
        return mod(args[0], args[1])
    if isinstance(e, ModularIndexing):
        return mod(floordiv(args[0], args[1]), args[2])
    if isinstance(e, (sympy.Min, functions.Min)):
        return reduce(minimum, args)
    if isinstance(e, (sympy.Max, functions.Max)):
        return reduce(maximum, args)
    if isinstance(e, Identity):
        return args[0]
    raise ConversionError(f"size {e} uses a function that dimension expressions do not support")


def _rounded_to_dim(e: Any) -> Dim:
    """Return a rounded float as integer arithmetic; the float is a quotient of sizes or a size times a constant."""
    (inner,) = e.args
    scale, parts = 1.0, []
    for part in inner.args if isinstance(inner, sympy.Mul) else (inner,):
        if part.is_number:
            scale *= float(part)
        else:
            parts.append(part)
    (part,) = parts if len(parts) == 1 else (sympy.nan,)
    if scale >= 0 and part.args and all(a.is_nonnegative for a in part.args):
        if scale == 1.0 and isinstance(part, functions.IntTrueDiv):
            return ROUNDED_QUOTIENTS[type(e)](*map(from_sympy, part.args))
        if isinstance(part, functions.ToFloat) and (times := exact_ratio(scale)):
            return ROUNDED_QUOTIENTS[type(e)](from_sympy(part.args[0]) * times.numerator, times.denominator)
    raise ConversionError(f"size {e} rounds a float that is not an exact ratio of integers")


def exact_ratio(scale: float) -> Fraction | None:
    """Return the fraction p/q with int(n * scale) == n * p // q in float64 for every size n; None if there is none.

    The rounded product has a relative error of at most 2^-53.  With `scale` within 2^-54 of p/q, it is n * p/q wherever
    that is an integer.  Elsewhere no integer lies between the two, because q is at most 1000.
    """
    ratio = Fraction(scale).limit_denominator(1000)
    return ratio if abs(Fraction(scale) - ratio) <= ratio / 2**54 else None


def float_node(e: Any, integer_node: Callable[[Any], Node]) -> Node:
    """Return a float expression as a node f64[]; `integer_node` converts its symbols and integer parts."""
    if e.is_number:
        return as_node(float(e), f64)
    if isinstance(e, functions.ToFloat) or e.is_integer or e.is_Symbol:
        return ops.as_dtype(integer_node(e.args[0] if isinstance(e, functions.ToFloat) else e), f64)
    return _apply(FLOAT_OPS, e, [float_node(a, integer_node) for a in e.args])


def condition_node(e: Any, integer_node: Callable[[Any], Node]) -> Node:
    """Return a condition on integers and floats as a node bool[]; `integer_node` converts its symbols and integer parts."""
    if not e.is_Relational:
        return _apply(INTEGER_OPS, e, [condition_node(a, integer_node) for a in e.args])
    are_integers = all(a.is_integer for a in e.args)
    return _apply(INTEGER_OPS, e, [integer_node(a) if are_integers else float_node(a, integer_node) for a in e.args])


def integer_node(e: Any, argument_node: Callable[[Any], Node]) -> Node:
    """Return an integer expression, or a condition, as a node i64[] or bool[]; `argument_node` converts its arguments."""
    if isinstance(e, sympy.Piecewise) and e.args[-1].cond == sympy.true:
        *choices, (otherwise, _) = e.args
        result = argument_node(otherwise)
        for value, condition in reversed(choices):
            result = ops.where(argument_node(condition), argument_node(value), result)
        return result
    return _apply(INTEGER_OPS, e, [argument_node(a) for a in e.args])


def _apply(table: Mapping[Any, Op], e: Any, args: Sequence[Node]) -> Node:
    """Return the function of `e` applied to nodes; all functions of two arguments take any number of them."""
    compute = next((op for kind, op in table.items() if isinstance(e, kind)), None)
    if compute is None:
        raise ConversionError(f"number {e} uses a function without a conversion")
    return reduce(compute, args) if len(args) > 1 else compute(*args)
