"""What index expressions may be at most and at least, in numbers and in sizes."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

from compiler.ir.atoms import FloorDiv
from compiler.ir.index import Bounds, Dim, Index, extreme, interval, sizes, variables


def span(d: Dim, bounds: Bounds) -> tuple[Dim, Dim] | None:
    """The lowest and highest value of `d` in numbers and sizes, or None where a variable has none."""
    if sizes(d) or any(isinstance(b, Index) for v in variables(d) for b in bounds.get(v, ())):
        low, high = extreme(d, bounds, 0), extreme(d, bounds, 1)
        if low is not None and high is not None and not variables(low) and not variables(high):
            return low, high
    return interval(d, bounds)


def is_less(a: Dim, b: Dim) -> bool:
    """Whether `a` is less than `b` whatever the sizes in them."""
    return is_at_most(a + 1, b)


def is_at_most(a: Dim, b: Dim) -> bool:
    """Whether `a` is at most `b` whatever the sizes in them."""
    gap = least(b - a)
    return gap is not None and gap >= 0


@lru_cache(maxsize=65536)
def least(d: Dim) -> int | None:
    """What `d` is at least; quotients by one number, of which one is taken from the other, differ as what they are quotients of."""
    terms = d.terms if isinstance(d, Index) else ()
    found = [(mono[0], coef) for mono, coef in terms if len(mono) == 1 and isinstance(mono[0], FloorDiv)]
    known = interval(d, {})
    bounds = [known[0]] if known else []
    for (p, times), (q, coef) in permutations(found, 2):
        apart = p.num - q.num
        if times == -coef > 0 and p.den == q.den and isinstance(p.den, int) and isinstance(apart, int):
            rest = least(d - Index((((p,), times),)) - Index((((q,), coef),)))
            bounds += [] if rest is None else [rest + times * (apart // p.den)]
    return max(bounds, default=None)
