"""Parts of scalar expressions: those that are used more than once, and those that are computed in any case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from compiler.ir.scalar import Expr, PrimitiveCall, with_args


def bind_common_subexprs(e: Expr, bind: Callable[[Expr], Expr]) -> Expr:
    """Return `e` with every primitive call that is used more than once, and not in an unlikely case alone, replaced by `bind(call)`."""
    calls = [id(a) for x in e.subexprs for a in x.args if isinstance(a, PrimitiveCall)]
    if len(calls) == len(set(calls)):
        return e
    uses, likely = Counter(calls), set(map(id, likely_subexprs(e)))
    memo: dict[int, Expr] = {}
    for x in e.subexprs:
        new = with_args(x, tuple(memo[id(a)] for a in x.args))
        memo[id(x)] = bind(new) if uses[id(x)] > 1 and id(x) in likely else new
    return memo[id(e)]


def likely_subexprs(e: Expr) -> tuple[Expr, ...]:
    """Return the subexpressions of `e`, in post-order, without those that only unlikely cases need."""
    if not any(x.primitive == "where_unlikely" for x in e.calls):
        return e.subexprs
    likely = {id(e)}
    for x in reversed(e.subexprs):
        if id(x) in likely:
            is_choice = isinstance(x, PrimitiveCall) and x.primitive == "where_unlikely"
            likely.update(id(a) for k, a in enumerate(x.args) if not is_choice or k != 1)
    return tuple(x for x in e.subexprs if id(x) in likely)
