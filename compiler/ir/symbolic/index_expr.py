"""Integer index arithmetic: tensor dimensions and addresses.

A `Dim` is a Python `int` or an `IndexExpr`: a polynomial with integer coefficients over *atoms*.  An atom is a variable
(a loop index, a symbolic dimension), a dynamic size, or a floor division, remainder or minimum that does not simplify:

    dim  ::= int | sum of  coefficient * atom * atom ...
    atom ::= Var(name) | DynamicSize(name, low, high, hint) | FloorDiv(dim, dim) | Mod(dim, dim) | Min(dim, dim)

Arithmetic keeps polynomials in canonical form: equal expressions compare equal and hash alike, and a constant is always
a plain `int`.  Floor divisions round toward minus infinity, as in Python.  Compare MLIR's AffineExpr.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import permutations
from math import gcd
from operator import mul
from typing import TypeAlias, Union

from compiler.errors import DynamicShapeError
from compiler.ir.symbolic.index_atoms import (
    Atom,
    CompoundAtom,
    DynamicSize,
    FloorDiv,
    Min,
    Mod,
    Monomial,
    RelevantBounds,
    Var,
    format_index,
    free_symbols,
    has_minimum,
    operands,
    relevant_bounds,
)
from compiler.ir.symbolic.index_atoms import terms as _terms

Dim: TypeAlias = Union[int, "IndexExpr"]
Bounds: TypeAlias = Mapping[str, tuple[Dim, Dim]]
"""Inclusive bounds of each variable, in constants and dynamic sizes."""


@dataclass(frozen=True, eq=False)
class IndexExpr:
    """A non-constant integer polynomial, built with `var` and Python operators."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(init=False)  # hashing a polynomial is hot

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, IndexExpr) and self._hash == other._hash and self.terms == other.terms
        )

    def __add__(self, other: Dim) -> Dim:
        return _sum(self, other)

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __neg__(self) -> Dim:
        return self * -1

    def __rsub__(self, other: int) -> Dim:
        return self * -1 + other

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floordiv(other, self)

    def __rmod__(self, other: int) -> Dim:
        return mod(other, self)

    def __str__(self) -> str:
        return format_index(self)

    __repr__ = __str__


@lru_cache(maxsize=65536)
def _sum(a: IndexExpr, b: Dim) -> Dim:
    sums = dict(a.terms)
    for mono, coef in _terms(b):
        sums[mono] = sums.get(mono, 0) + coef
    return _canonicalize(sums)


@lru_cache(maxsize=65536)
def _product(a: IndexExpr, b: Dim) -> Dim:
    if isinstance(b, int):
        return IndexExpr(tuple((m, c * b) for m, c in a.terms)) if b else 0
    products: dict[Monomial, int] = {}
    for m1, c1 in a.terms:
        for m2, c2 in b.terms:
            mono = tuple(sorted(m1 + m2, key=str))
            products[mono] = products.get(mono, 0) + c1 * c2
    return _canonicalize(products)


@lru_cache(maxsize=65536)
def _monomial_sort_key(mono: Monomial) -> tuple[bool, str]:
    """Return the sort key of a monomial in a sum: its text, the constant last."""
    return (not mono, "*".join(map(str, mono)))


def _canonicalize(sums: Mapping[Monomial, int]) -> Dim:
    if len(sums) > 1 and (recombined := _recombine_div_mod(sums)) is not None:
        return recombined
    nonzero = [(m, c) for m, c in sums.items() if c]
    if not nonzero:
        return 0
    if len(nonzero) == 1 and not nonzero[0][0]:
        return nonzero[0][1]
    return IndexExpr(
        tuple(sorted(nonzero, key=lambda term: _monomial_sort_key(term[0])) if len(nonzero) > 1 else nonzero)
    )


def _recombine_div_mod(sums: Mapping[Monomial, int]) -> Dim | None:
    """Rewrite `(n // d) * d + n % d`, times any common factor, to `n`; None if there is no such pair of terms."""
    for mono, coef in sums.items():
        for atom in mono:
            if not coef or not isinstance(atom, Mod) or len(_terms(atom.den)) != 1:
                continue
            others = list(mono)
            others.remove(atom)
            ((factors, times),) = _terms(atom.den)
            fraction = _reduce_fraction(atom.num, atom.den) if isinstance(atom.den, int) else (atom.num, atom.den)
            partner = tuple(sorted([*others, FloorDiv(*fraction), *factors], key=str))
            if sums.get(partner) == coef * times:
                remaining = {m: c for m, c in sums.items() if m not in (mono, partner)}
                factor: Dim = IndexExpr(((tuple(others), coef),)) if others else coef
                return _canonicalize(remaining) + atom.num * factor
    return None


def var(name: str) -> IndexExpr:
    """Return the variable `name`."""
    return _atom(Var(name))


def dynamic_size(name: str, low: int, high: int, hint: int) -> IndexExpr:
    """Return the dynamic size `name` in low..high (inclusive), which cost models assume to be `hint`."""
    return _atom(DynamicSize(name, low, high, hint))


@lru_cache(maxsize=65536)
def _atom(atom: Atom) -> IndexExpr:
    return IndexExpr((((atom,), 1),))


def _divide_terms(num: Dim, den: int) -> tuple[Dim, Dim]:
    """Split `num` into `quotient * den + remainder`; terms whose coefficient `den` divides go to the quotient."""
    quotient, remainder = dict[Monomial, int](), dict[Monomial, int]()
    for mono, coef in _terms(num):
        q, r = divmod(coef, den)
        quotient[mono], remainder[mono] = (q, r) if not mono or not r else (0, coef)
    return _canonicalize(quotient), _canonicalize(remainder)


def _divide_terms_symbolic(num: Dim, den: IndexExpr) -> tuple[Dim, Dim]:
    """Split `num` into `quotient * den + remainder`; terms that `den` divides go to the quotient."""
    if len(den.terms) != 1:
        first, times = den.terms[0]
        times = dict(_terms(num)).get(first, 0) // times
        return (times, 0) if num == den * times else (0, num)
    (mono, coef), quotient, remainder = den.terms[0], dict[Monomial, int](), dict[Monomial, int]()
    divisor = Counter(mono)
    for m, c in _terms(num):
        if c % coef == 0 and divisor <= (factors := Counter(m)):
            quotient[tuple((factors - divisor).elements())] = c // coef
        else:
            remainder[m] = c
    return _canonicalize(quotient), _canonicalize(remainder)


def _known_quotient(d: Dim, den: IndexExpr, bounds: Bounds | None) -> int | None:
    """Return the quotient of `d` if it is provably 0 or -1."""
    limits = ((k, interval(d - k * den, bounds), interval(den * (k + 1) - d, bounds)) for k in (0, -1))
    known = (k for k, low, gap in limits if low is not None and gap is not None and low[0] >= 0 and gap[0] > 0)
    return 0 if d == 0 else next(known, None)


def floordiv(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """Return `num // den`, simplified under `bounds` of the variables; ZeroDivisionError if `den` is the constant 0."""
    if isinstance(den, IndexExpr):
        quotient, remainder = _divide_terms_symbolic(num, den)
        known = _known_quotient(remainder, den, bounds)
        return quotient + (_atom(FloorDiv(remainder, den)) if known is None else known)
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    quotient, remainder = _divide_terms(num, den)
    if isinstance(remainder, int):
        return quotient + remainder // den
    if den > 0 and (limits := interval(remainder, bounds)) is not None and limits[0] // den == limits[1] // den:
        return quotient + limits[0] // den
    high, step, _ = _split_at_step(remainder, den, bounds)
    return quotient + _atom(FloorDiv(high, den // step))


def mod(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """Return `num % den`, simplified under `bounds` of the variables; ZeroDivisionError if `den` is the constant 0."""
    if isinstance(den, IndexExpr):
        _, remainder = _divide_terms_symbolic(num, den)
        known = _known_quotient(remainder, den, bounds)
        return _atom(Mod(remainder, den)) if known is None else remainder - known * den
    if den == 0:
        raise ZeroDivisionError(f"{num} % 0")
    _, remainder = _divide_terms(num, den)
    if isinstance(remainder, int):
        return remainder % den
    if den > 0 and (limits := interval(remainder, bounds)) is not None and limits[0] // den == limits[1] // den:
        return remainder - limits[0] // den * den
    high, step, low = _split_at_step(remainder, den, bounds)
    return _atom(Mod(high, den // step)) * step + low


def minimum(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    """Return the minimum of `a` and `b`, simplified under `bounds` of the variables."""
    gap = interval(a - b, bounds)
    if gap is not None and (gap[1] <= 0 or gap[0] >= 0):
        return a if gap[1] <= 0 else b
    return _atom(Min(*sorted((a, b), key=str)))


def maximum(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    """Return the maximum of `a` and `b`, simplified under `bounds` of the variables."""
    return -minimum(-a, -b, bounds)


def _reduce_fraction(num: Dim, den: int) -> tuple[Dim, int]:
    """Cancel the greatest common divisor of `den` and all coefficients of `num`."""
    common = reduce(gcd, (c for _, c in _terms(num)), den)
    return (_canonicalize({m: c // common for m, c in _terms(num)}), den // common) if common > 1 else (num, den)


def _split_at_step(num: Dim, den: int, bounds: Bounds | None) -> tuple[Dim, int, Dim]:
    """Split `num` into `high * step + low` by the largest `step` that divides `den`, with 0 <= low < step provable."""
    for step in sorted({gcd(c, den) for _, c in _terms(num)}, reverse=True):
        high, low = _divide_terms(num, step)
        limits = interval(low, bounds)
        if low == 0 or (den > 0 and limits is not None and limits[0] >= 0 and limits[1] < step):
            return high, step, low
    return num, 1, 0


def interval(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Return inclusive constant bounds of `d`, or None if a variable in it is unbounded."""
    return _tightest_interval(d, relevant_bounds(d, bounds))


@lru_cache(maxsize=65536)
def _tightest_interval(d: Dim, relevant: RelevantBounds) -> tuple[int, int] | None:
    bounds = dict(relevant)
    direct, rewritten = _direct_interval(d, bounds), _recover_mods(d)
    other = direct if rewritten is d else _direct_interval(rewritten, bounds)
    limits = [i for i in (direct, other, *_quotient_difference_intervals(d, bounds)) if i]
    return (max(low for low, _ in limits), min(high for _, high in limits)) if limits else None


def _quotient_difference_intervals(d: Dim, bounds: Bounds | None) -> Iterator[tuple[int, int]]:
    """Yield bounds of `d` from each pair of terms `(n + k)//b*c - n//b*c` with constant `k`: about k*c/b."""
    quotients = [(mono[0], coef) for mono, coef in _terms(d) if len(mono) == 1 and isinstance(mono[0], FloorDiv)]
    for (p, times), (q, coef) in permutations(quotients, 2):
        k = p.num - q.num
        if times == -coef > 0 and p.den == q.den and isinstance(p.den, int) and isinstance(k, int):
            others = interval(d - _atom(p) * times + _atom(q) * times, bounds)
            yield from [(others[0] + k // p.den * times, others[1] - -k // p.den * times)] if others else []


def _direct_interval(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Return bounds of `d` from the bounds of its terms or of the branches of its minimum."""
    if (split := _split_at_min(d)) is not None:
        pick, a, b = split[0], interval(split[1], bounds), interval(split[2], bounds)
        return (pick(a[0], b[0]), pick(a[1], b[1])) if a and b else None
    if bounds and any(isinstance(b, IndexExpr) for v in variables(d) for b in bounds.get(v, ())):
        ends = (symbolic_bound(d, bounds, 0), symbolic_bound(d, bounds, 1))
        first, last = (None if e is None else interval(e, bounds) for e in ends)
        return (first[0], last[1]) if first and last else None
    return _sum_of_intervals(d, bounds)


def _split_at_min(d: Dim) -> tuple[Callable[[int, int], int], Dim, Dim] | None:
    """Rewrite a sum with a `Min` term as `min` or `max` of two sums; None if there is no such term."""
    for mono, coef in d.terms if isinstance(d, IndexExpr) else ():
        if len(mono) == 1 and isinstance(mono[0], Min):
            others = d - IndexExpr(((mono, coef),))
            return min if coef > 0 else max, others + mono[0].lhs * coef, others + mono[0].rhs * coef
    return None


def _sum_of_intervals(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Return the sum of the bounds of the terms of `d` (interval arithmetic)."""
    low = high = 0
    for mono, coef in _terms(d):
        lo = hi = coef
        for atom in mono:
            limits = _atom_interval(atom, bounds or {})
            if limits is None:
                return None
            corners = [lo * limits[0], lo * limits[1], hi * limits[0], hi * limits[1]]
            lo, hi = min(corners), max(corners)
        low, high = low + lo, high + hi
    return low, high


def _recover_mods(d: Dim) -> Dim:
    """Rewrite `n - n//b*b` in `d` to `n%b`, whose bounds are tighter, if `n` contains dynamic sizes or minima."""
    if not any(isinstance(a, FloorDiv) and _has_dynamic_range(a.num) for mono, _ in _terms(d) for a in mono):
        return d
    total: Dim = 0
    for mono, coef in _terms(d):
        a = mono[0] if len(mono) == 1 else None
        if isinstance(a, FloorDiv) and isinstance(a.den, int) and coef % a.den == 0 and _has_dynamic_range(a.num):
            total = total + (a.num - _atom(Mod(a.num, a.den))) * (coef // a.den)
        else:
            total = total + IndexExpr(((mono, coef),)) if mono else total + coef
    return _merge_nested_mods(total)


def _merge_nested_mods(d: Dim) -> Dim:
    """Rewrite `n%b - n%a` in `d` to `n%b//a*a`, which is at least 0, if `a` divides `b`."""
    mods = [(mono[0], coef) for mono, coef in _terms(d) if len(mono) == 1 and isinstance(mono[0], Mod)]
    for (fine, times), (coarse, coef) in permutations(mods, 2):
        a, b = fine.den, coarse.den
        if fine.num == coarse.num and isinstance(a, int) and isinstance(b, int) and b % a == 0 and times == -coef:
            return d + (_atom(FloorDiv(_atom(coarse), a)) * a - _atom(coarse) + _atom(fine)) * coef
    return d


def _has_dynamic_range(n: Dim) -> bool:
    return bool(dynamic_sizes(n)) or has_minimum(n)


def symbolic_bound(d: Dim, bounds: Bounds, end: int) -> Dim | None:
    """Return the lower (`end` 0) or upper (`end` 1) bound of `d`, or None if there is none.

    Only variables with symbolic `bounds` are eliminated (compare Halide's bounds inference).
    """
    if (split := _split_at_min(d)) is not None:
        x, y = symbolic_bound(split[1], bounds, end), symbolic_bound(split[2], bounds, end)
        if x is None or y is None:
            return None
        return (minimum if split[0] is min else maximum)(x, y, bounds)
    total: Dim = 0
    for mono, coef in _terms(d):
        term: Dim = coef
        bounded = [a for a in mono if _has_symbolic_bounds(a, bounds) and _atom_bounds(a, bounds) is not None]
        others = [a for a in mono if a not in bounded]
        if len(bounded) > 1 or any(_has_symbolic_bounds(a, bounds) for a in others):
            return None
        for a in others:
            term = term * _atom(a)
        if bounded:
            factor = interval(term, bounds)
            if factor is None or factor[0] < 0 < factor[1]:
                return None
            low, high = _atom_bounds(bounded[0], bounds) or (0, 0)
            term = term * (high if (factor[1] > 0) == bool(end) else low)
        total = total + term
    return total


def _atom_bounds(a: Atom, bounds: Bounds) -> tuple[Dim, Dim] | None:
    """Return the bounds of a variable, or of a remainder, which do not depend on those of its operand."""
    if isinstance(a, Var):
        return bounds.get(a.name)
    return (0, a.den - 1) if isinstance(a, Mod) and isinstance(a.den, int) else None


def _has_symbolic_bounds(a: Atom, bounds: Bounds) -> bool:
    """Return True if a variable in `a` has a symbolic bound."""
    return any(isinstance(b, IndexExpr) for v in variables(_atom(a)) for b in bounds.get(v, ()))


def _atom_interval(atom: Atom, bounds: Bounds) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        return bounds.get(atom.name)  # type: ignore[return-value]  # symbolic bounds have been substituted
    if isinstance(atom, DynamicSize):
        return bounds.get(atom.name, (atom.low, atom.high))  # type: ignore[return-value]  # likewise
    if isinstance(atom, Min):
        return interval(_atom(atom), bounds)
    inner, divisors = interval(atom.num, bounds), interval(atom.den, bounds)
    if divisors is None or divisors[0] <= 0:
        return None
    ends = [0, divisors[1] - 1] if isinstance(atom, Mod) else [n // k for n in inner or () for k in divisors]
    return (min(ends), max(ends)) if ends else None


def apply_compound(a: CompoundAtom, x: Dim, y: Dim, bounds: Bounds | None = None) -> Dim:
    """Apply the operation of `a` to the operands `x` and `y`."""
    return (minimum if isinstance(a, Min) else floordiv if isinstance(a, FloorDiv) else mod)(x, y, bounds)


def _map_atoms(d: Dim, atom: Callable[[Atom], Dim]) -> Dim:
    """Replace every atom `a` of `d` by `atom(a)`; faster than `index_atoms.map_atoms`, for index expressions only."""
    sums: dict[Monomial, int] = {}
    for mono, coef in _terms(d):
        product: Dim = coef
        for a in mono:
            product = product * atom(a)
        for m, c in _terms(product):
            sums[m] = sums.get(m, 0) + c
    return _canonicalize(sums)


def substitute(d: Dim, values: Mapping[str, Dim], bounds: Bounds | None = None) -> Dim:
    """Replace variables and sizes of `d` by `values`, simplified under `bounds` of the remaining variables."""

    def is_unaffected(d: Dim) -> bool:
        return not any(a.name in values or (bounds and a.name in bounds) for a in free_symbols(d))

    def atom(a: Atom) -> Dim:
        if isinstance(a, (Var, DynamicSize)):
            return values[a.name] if a.name in values else _atom(a)
        if is_unaffected(unchanged := _atom(a)):
            return unchanged
        x, y = (substitute(operand, values, bounds) for operand in operands(a))
        return apply_compound(a, x, y, bounds)

    return d if is_unaffected(d) else _map_atoms(d, atom)


def simplify(d: Dim, bounds: Bounds) -> Dim:
    """Simplify divisions, remainders and minima in `d` under `bounds` of the variables."""
    return _simplify_within(d, relevant_bounds(d, bounds)) if isinstance(d, IndexExpr) else d


@lru_cache(maxsize=65536)
def _simplify_within(d: IndexExpr, bounds: RelevantBounds) -> Dim:
    return substitute(d, {}, dict(bounds))


@lru_cache(maxsize=65536)
def variables(d: Dim) -> frozenset[str]:
    """Return the names of the variables in `d`, without dynamic sizes."""
    return frozenset(a.name for a in free_symbols(d) if isinstance(a, Var))


@lru_cache(maxsize=65536)
def dynamic_sizes(d: Dim) -> frozenset[DynamicSize]:
    """Return the dynamic sizes in `d`."""
    return frozenset(a for a in free_symbols(d) if isinstance(a, DynamicSize))


@lru_cache(maxsize=65536)
def size_hint(d: Dim) -> Dim:
    """Replace every dynamic size in `d` by its hint; for cost estimates only, never for correctness."""
    return substitute(d, {s.name: s.hint for s in dynamic_sizes(d)})


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """Return the integer value of `d`; KeyError for a missing variable, DynamicShapeError for a missing size."""
    if isinstance(d, int):
        return d
    missing = {a for a in free_symbols(d) if a.name not in values}
    if missing:
        names = ", ".join(sorted(map(str, missing)))
        if any(isinstance(a, Var) for a in missing):
            raise KeyError(f"no value for {names} in {d}")
        raise DynamicShapeError(f"{d} must be static, but {names} is dynamic")
    result = substitute(d, dict(values))
    assert isinstance(result, int)
    return result


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of `dims`; 1 if there are none."""
    total: Dim = reduce(mul, dims, 1)
    return total


def ceildiv(num: Dim, den: Dim) -> Dim:
    """Return `num / den` rounded up."""
    return floordiv(num + den - 1, den)
