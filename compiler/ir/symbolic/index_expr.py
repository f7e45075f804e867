"""Integer index arithmetic: tensor dimensions and addresses.

A `Dim` is a Python `int` or an `Index`: a polynomial with integer coefficients over *atoms*.  An atom is a variable
(a loop index, a symbolic dimension), a size that is known only when the program runs, or a floor division, remainder or minimum
that does not simplify:

    dim  ::= int | sum of  coefficient * atom * atom ...
    atom ::= Var(name) | DynamicSize(name, low, high, likely) | FloorDiv(dim, dim) | Mod(dim, dim) | Min(dim, dim)

Arithmetic keeps the polynomial in one canonical form, so equal expressions compare equal and hash alike, and a constant
result is always a plain `int`.  All floor divisions round toward minus infinity, as Python's do.
"""

from __future__ import annotations

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
    Var,
    format_index,
    free_symbols,
    has_minimum,
    operands,
)
from compiler.ir.symbolic.index_atoms import terms as _terms

Dim: TypeAlias = Union[int, "IndexExpr"]
Bounds: TypeAlias = Mapping[str, tuple[Dim, Dim]]
"""Inclusive lowest and highest value of each variable, in numbers and sizes."""


@dataclass(frozen=True, eq=False)
class IndexExpr:
    """A non-constant integer polynomial; build one with `var` and the usual operators."""

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
    """Where a monomial stands in a sum: by its text, the constant last."""
    return (not mono, "*".join(map(str, mono)))


def _canonicalize(sums: Mapping[Monomial, int]) -> Dim:
    if (joined := _recombine_div_mod(sums)) is not None:
        return joined
    kept = [(m, c) for m, c in sums.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return IndexExpr(tuple(sorted(kept, key=lambda term: _monomial_sort_key(term[0])) if len(kept) > 1 else kept))


def _recombine_div_mod(sums: Mapping[Monomial, int]) -> Dim | None:
    """`(n // d) * d + n % d` is n again, whatever both are multiplied by; None where there is no such pair."""
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
                rest = {m: c for m, c in sums.items() if m not in (mono, partner)}
                factor: Dim = IndexExpr(((tuple(others), coef),)) if others else coef
                return _canonicalize(rest) + atom.num * factor
    return None


def var(name: str) -> IndexExpr:
    """The variable `name` as an `Index`."""
    return _atom(Var(name))


def dynamic_size(name: str, low: int, high: int, hint: int) -> IndexExpr:
    """The size `name`, as an `Index`."""
    return _atom(DynamicSize(name, low, high, hint))


@lru_cache(maxsize=65536)
def _atom(atom: Atom) -> IndexExpr:
    return IndexExpr((((atom,), 1),))


def _divide_terms(num: Dim, den: int) -> tuple[Dim, Dim]:
    """`num` as `quotient * den + rest`, taking out every term whose coefficient `den` divides."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for mono, coef in _terms(num):
        if mono:
            q, r = (coef // den, 0) if coef % den == 0 else (0, coef)
        else:
            q, r = divmod(coef, den)
        quotient[mono], rest[mono] = q, r
    return _canonicalize(quotient), _canonicalize(rest)


def _divide_terms_symbolic(num: Dim, den: IndexExpr) -> tuple[Dim, Dim]:
    """`num` as `quotient * den + rest`, taking out every term that `den` divides."""
    if len(den.terms) != 1:
        first, times = den.terms[0]
        times = dict(_terms(num)).get(first, 0) // times
        return (times, 0) if num == den * times else (0, num)
    (mono, coef), quotient, rest = den.terms[0], dict[Monomial, int](), dict[Monomial, int]()
    for m, c in _terms(num):
        left = list(m)
        divides = c % coef == 0
        for atom in mono:
            divides = divides and atom in left
            if divides:
                left.remove(atom)
        if divides:
            quotient[tuple(left)] = c // coef
        else:
            rest[m] = c
    return _canonicalize(quotient), _canonicalize(rest)


def _is_in_range(rest: Dim, den: IndexExpr, bounds: Bounds | None) -> bool:
    """Whether `rest` is known to be in 0..den-1."""
    low, gap = interval(rest, bounds), interval(den - rest, bounds)
    return rest == 0 or (low is not None and gap is not None and low[0] >= 0 and gap[0] > 0)


def floordiv(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """`num // den`, simplified; `bounds` on variables let more of it vanish."""
    if isinstance(den, IndexExpr):
        quotient, rest = _divide_terms_symbolic(num, den)
        return quotient if _is_in_range(rest, den, bounds) else quotient + _atom(FloorDiv(rest, den))
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    quotient, rest = _divide_terms(num, den)
    if isinstance(rest, int):
        return quotient + rest // den
    if den > 0 and (known := interval(rest, bounds)) is not None and known[0] // den == known[1] // den:
        return quotient + known[0] // den
    return quotient + _atom(FloorDiv(*_reduce_fraction(rest, den)))


def mod(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """`num % den`, simplified; `bounds` on variables let more of it vanish."""
    if isinstance(den, IndexExpr):
        _, rest = _divide_terms_symbolic(num, den)
        return rest if _is_in_range(rest, den, bounds) else _atom(Mod(rest, den))
    if den == 0:
        raise ZeroDivisionError(f"{num} % 0")
    _, rest = _divide_terms(num, den)
    if isinstance(rest, int):
        return rest % den
    if den > 0 and (known := interval(rest, bounds)) is not None and known[0] // den == known[1] // den:
        return rest - known[0] // den * den
    return _atom(Mod(rest, den))


def minimum(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    """The lesser of two numbers; `bounds` on variables may tell which that is."""
    gap = interval(a - b, bounds)
    if gap is not None and (gap[1] <= 0 or gap[0] >= 0):
        return a if gap[1] <= 0 else b
    return _atom(Min(*sorted((a, b), key=str)))


def maximum(a: Dim, b: Dim, bounds: Bounds | None = None) -> Dim:
    """The greater of two numbers, as `minimum` finds the lesser."""
    return -minimum(-a, -b, bounds)


def _reduce_fraction(num: Dim, den: int) -> tuple[Dim, int]:
    """Cancel a common factor of every coefficient of `num` and `den`."""
    common = reduce(gcd, (c for _, c in _terms(num)), den)
    return (_canonicalize({m: c // common for m, c in _terms(num)}), den // common) if common > 1 else (num, den)


def interval(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Inclusive bounds of `d`, or None where a variable has none."""
    return (
        _tightest_interval(d, bounds)
        if bounds and any(a.name in bounds for a in free_symbols(d))
        else _cached_interval(d)
    )


@lru_cache(maxsize=65536)
def _cached_interval(d: Dim) -> tuple[int, int] | None:
    return _tightest_interval(d, None)


def _tightest_interval(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    plain, closer = _direct_interval(d, bounds), _recover_mods(d)
    other = plain if closer is d else _direct_interval(closer, bounds)
    found = [known for known in (plain, other, *_quotient_difference_intervals(d, bounds)) if known]
    return (max(low for low, _ in found), min(high for _, high in found)) if found else None


def _quotient_difference_intervals(d: Dim, bounds: Bounds | None) -> Iterator[tuple[int, int]]:
    """Bounds of `d` where a quotient is taken from another by the same number: they differ as what they are quotients of."""
    found = [(mono[0], coef) for mono, coef in _terms(d) if len(mono) == 1 and isinstance(mono[0], FloorDiv)]
    for (p, times), (q, coef) in permutations(found, 2):
        apart = p.num - q.num
        if times == -coef > 0 and p.den == q.den and isinstance(p.den, int) and isinstance(apart, int):
            rest = interval(d - _atom(p) * times + _atom(q) * times, bounds)
            yield from [(rest[0] + apart // p.den * times, rest[1] - -apart // p.den * times)] if rest else []


def _direct_interval(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Bounds of `d` by what it is a sum of."""
    if (chosen := _split_at_min(d)) is not None:
        pick, a, b = chosen[0], interval(chosen[1], bounds), interval(chosen[2], bounds)
        return (pick(a[0], b[0]), pick(a[1], b[1])) if a and b else None
    if bounds and any(isinstance(b, IndexExpr) for v in variables(d) for b in bounds.get(v, ())):
        ends = (symbolic_bound(d, bounds, 0), symbolic_bound(d, bounds, 1))
        first, last = (None if e is None else interval(e, bounds) for e in ends)
        return (first[0], last[1]) if first and last else None
    return _sum_of_intervals(d, bounds)


def _split_at_min(d: Dim) -> tuple[Callable[[int, int], int], Dim, Dim] | None:
    """`d` as the lesser or greater (`min` or `max`) of two sums, where a minimum is added to the rest of it; else None."""
    for mono, coef in d.terms if isinstance(d, IndexExpr) else ():
        if len(mono) == 1 and isinstance(mono[0], Min):
            rest = d - IndexExpr(((mono, coef),))
            return min if coef > 0 else max, rest + mono[0].lhs * coef, rest + mono[0].rhs * coef
    return None


def _sum_of_intervals(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Bounds of `d`, term by term."""
    low = high = 0
    for mono, coef in _terms(d):
        lo = hi = coef
        for atom in mono:
            known = _atom_interval(atom, bounds or {})
            if known is None:
                return None
            corners = [lo * known[0], lo * known[1], hi * known[0], hi * known[1]]
            lo, hi = min(corners), max(corners)
        low, high = low + lo, high + hi
    return low, high


def _recover_mods(d: Dim) -> Dim:
    """`d` with `n - n//b*b` as `n%b`, whose bounds are closer, where `n` is made of sizes or minima."""
    if not any(isinstance(a, FloorDiv) and _has_dynamic_range(a.num) for mono, _ in _terms(d) for a in mono):
        return d
    total: Dim = 0
    for mono, coef in _terms(d):
        (a, *more) = mono or (None,)
        if (
            not more
            and isinstance(a, FloorDiv)
            and isinstance(a.den, int)
            and coef % a.den == 0
            and _has_dynamic_range(a.num)
        ):
            total = total + (a.num - _atom(Mod(a.num, a.den))) * (coef // a.den)
        else:
            total = total + IndexExpr(((mono, coef),)) if mono else total + coef
    return _merge_nested_mods(total)


def _merge_nested_mods(d: Dim) -> Dim:
    """`d` with `n%b - n%a` as `n%b//a*a` where a divides b: no less than 0."""
    found = [(mono[0], coef) for mono, coef in _terms(d) if len(mono) == 1 and isinstance(mono[0], Mod)]
    for (fine, times), (coarse, coef) in permutations(found, 2):
        a, b = fine.den, coarse.den
        if fine.num == coarse.num and isinstance(a, int) and isinstance(b, int) and b % a == 0 and times == -coef:
            return d + (_atom(FloorDiv(_atom(coarse), a)) * a - _atom(coarse) + _atom(fine)) * coef
    return d


def _has_dynamic_range(n: Dim) -> bool:
    return bool(dynamic_sizes(n)) or has_minimum(n)


def symbolic_bound(d: Dim, bounds: Bounds, end: int) -> Dim | None:
    """The lowest (`end` 0) or highest (1) value of `d` as variables that are bounded by sizes allow; None where it has none."""
    if (chosen := _split_at_min(d)) is not None:
        x, y = symbolic_bound(chosen[1], bounds, end), symbolic_bound(chosen[2], bounds, end)
        if x is None or y is None:
            return None
        return (minimum if chosen[0] is min else maximum)(x, y, bounds)
    total: Dim = 0
    for mono, coef in _terms(d):
        term: Dim = coef
        moving = [
            a for a in mono if isinstance(a, Var) and any(isinstance(b, IndexExpr) for b in bounds.get(a.name, ()))
        ]
        others = [a for a in mono if a not in moving]
        if len(moving) > 1 or any(_has_symbolic_bounds(a, bounds) for a in others):
            return None
        for a in others:
            term = term * _atom(a)
        if moving:
            factor = interval(term, bounds)
            if factor is None or factor[0] < 0 < factor[1]:
                return None
            low, high = bounds[moving[0].name]
            term = term * (high if (factor[1] > 0) == bool(end) else low)
        total = total + term
    return total


def _has_symbolic_bounds(a: Atom, bounds: Bounds) -> bool:
    """Whether a compound atom holds a variable that is bounded by sizes."""
    names = () if isinstance(a, (Var, DynamicSize)) else variables(_atom(a))
    return any(isinstance(b, IndexExpr) for v in names for b in bounds.get(v, ()))


def _atom_interval(atom: Atom, bounds: Bounds) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        return bounds.get(atom.name)  # type: ignore[return-value]  # bounds in sizes have been put in place
    if isinstance(atom, DynamicSize):
        return bounds.get(atom.name, (atom.low, atom.high))  # type: ignore[return-value]  # likewise
    if isinstance(atom, Min):
        return interval(_atom(atom), bounds)
    if not isinstance(atom.den, int) or atom.den <= 0:
        return None
    inner = interval(atom.num, bounds)
    if isinstance(atom, Mod):
        return (0, atom.den - 1)
    return None if inner is None else (inner[0] // atom.den, inner[1] // atom.den)


def apply_compound(a: CompoundAtom, x: Dim, y: Dim, bounds: Bounds | None = None) -> Dim:
    """The operation of `a` on other operands."""
    return (minimum if isinstance(a, Min) else floordiv if isinstance(a, FloorDiv) else mod)(x, y, bounds)


def _map_atoms(d: Dim, atom: Callable[[Atom], Dim]) -> Dim:
    """`d` with every atom replaced by `atom(a)`."""
    sums: dict[Monomial, int] = {}
    for mono, coef in _terms(d):
        product: Dim = coef
        for a in mono:
            product = product * atom(a)
        for m, c in _terms(product):
            sums[m] = sums.get(m, 0) + c
    return _canonicalize(sums)


def substitute(d: Dim, values: Mapping[str, Dim], bounds: Bounds | None = None) -> Dim:
    """`d` with variables replaced, simplified under `bounds` of the variables that stay."""

    def stays(d: Dim) -> bool:
        return not any(a.name in values or (bounds and a.name in bounds) for a in free_symbols(d))

    def atom(a: Atom) -> Dim:
        if isinstance(a, (Var, DynamicSize)):
            return values[a.name] if a.name in values else _atom(a)
        if stays(own := _atom(a)):
            return own
        x, y = (substitute(part, values, bounds) for part in operands(a))
        return apply_compound(a, x, y, bounds)

    return d if stays(d) else _map_atoms(d, atom)


def substitute_symbols(value: object, values: Mapping[str, Dim]) -> object:
    """An attribute with the symbols in it replaced."""
    if isinstance(value, tuple):
        return tuple(substitute_symbols(v, values) for v in value)
    return substitute(value, values) if isinstance(value, IndexExpr) else value


def simplify(d: Dim, bounds: Bounds) -> Dim:
    """`d` with the divisions, remainders and minima that `bounds` decide taken out."""
    plain = isinstance(d, int) or all(isinstance(a, (Var, DynamicSize)) for mono, _ in d.terms for a in mono)
    return d if plain else substitute(d, {}, bounds)


@lru_cache(maxsize=65536)
def variables(d: Dim) -> frozenset[str]:
    """Names of the variables in `d`; a size is none."""
    return frozenset(a.name for a in free_symbols(d) if isinstance(a, Var))


@lru_cache(maxsize=65536)
def dynamic_sizes(d: Dim) -> frozenset[DynamicSize]:
    """The sizes in `d`."""
    return frozenset(a for a in free_symbols(d) if isinstance(a, DynamicSize))


@lru_cache(maxsize=65536)
def size_hint(d: Dim) -> Dim:
    """`d` with every size as it is likely to be: for weighing costs, never for what must hold."""
    return substitute(d, {s.name: s.hint for s in dynamic_sizes(d)})


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """The integer `d` denotes; a missing variable raises KeyError, a missing size OpenSizeError."""
    if isinstance(d, int):
        return d
    missing = {a for a in free_symbols(d) if a.name not in values}
    if missing:
        names = ", ".join(sorted(map(str, missing)))
        if any(isinstance(a, Var) for a in missing):
            raise KeyError(f"no value for {names} in {d}")
        raise DynamicShapeError(f"{d} must be a number, but {names} is open")
    result = substitute(d, dict(values))
    assert isinstance(result, int)
    return result


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    total: Dim = reduce(mul, dims, 1)
    return total


def ceildiv(num: Dim, den: Dim) -> Dim:
    """`num / den` rounded up."""
    return floordiv(num + den - 1, den)
