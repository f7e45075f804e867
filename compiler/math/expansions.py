"""Expansions of elementary functions into arithmetic, comparisons, selects and bit operations, for pass `expand-math`.

An expansion takes arguments of type f32 or f64 that are cheap to repeat (a name or a constant).  In the expression that it
returns, an object used twice is a value computed once.  No expansion branches or reads a table: all lanes of a vector
execute the same operations.

Every function is accurate over the whole range of its type: zeros (with their sign), denormal arguments and results,
infinities and NaN.  Its docstring states the largest error found, in ulp (units in the last place), and the cost in
primitives without bitcasts.  Tested in f32: exp and erf on all arguments, the others on every ninth, pow on 60 million
pairs; in f64: some million arguments of each.

All expansions assume that `fma` rounds once.  They use `where(x > c, c, x)` for a minimum: one instruction on x86, and it
keeps NaN, where a NaN-propagating minimum takes three.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from compiler.ir.scalar import Expr, PrimitiveCall
from compiler.math.binary import format_of
from compiler.math.error_function import erf
from compiler.math.exponential import exp, exp2, exp2_ftz, exp_ftz, expm1, scaled_exp, scaled_exp2
from compiler.math.hyperbolic import cosh, sinh, tanh
from compiler.math.inverse_trigonometric import acos, asin, atan
from compiler.math.logarithm import log, log1p, log2
from compiler.math.power import pow_, rsqrt
from compiler.math.trigonometric import cos, sin, tan

__all__ = ["EXPANSIONS", "expand"]

EXPANSIONS: Mapping[str, Callable[..., Expr]] = {
    function.__name__.rstrip("_"): function
    for function in (
        acos, asin, atan, cos, cosh, erf, exp, exp2, exp_ftz, exp2_ftz, expm1, log, log1p, log2, pow_, rsqrt, sin, sinh, tan, tanh,
    )
}  # fmt: skip
"""Expansions by the name of their primitive."""

SCALED_EXPANSIONS: Mapping[str, Callable[..., Expr]] = {"exp": scaled_exp, "exp2": scaled_exp2}
"""Expansions in their place where `scale` has an instruction."""


def expand(call: PrimitiveCall, native: Collection[str] = ()) -> Expr:
    """Return the expansion of `call` for a target with instructions for the primitives `native`.

    Raises KeyError if its primitive is no elementary function, TypeError unless its dtype is f32 or f64.
    """
    format_of(call)
    name = call.primitive
    expansion = SCALED_EXPANSIONS.get(name) if "scale" in native else None
    return (expansion or EXPANSIONS[name])(*call.operands)
