"""Integer index arithmetic: tensor dimensions and addresses.

A `Dim` is a Python `int` or an `Index`: a polynomial with integer coefficients over *atoms*.  An atom is a variable
(a loop index, a symbolic dimension), a size that is known only when the program runs, or a floor division or remainder that
does not simplify:

    dim  ::= int | sum of  coefficient * atom * atom ...
    atom ::= Var(name) | Size(name, low, high, likely) | FloorDiv(dim, dim) | Mod(dim, dim)

Arithmetic keeps the polynomial in one canonical form, so equal expressions compare equal and hash alike, and a constant
result is always a plain `int`.  All floor divisions round toward minus infinity, as Python's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import TypeAlias, Union

Dim: TypeAlias = Union[int, "Index"]
Bounds: TypeAlias = Mapping[str, tuple[Dim, Dim]]
"""Inclusive lowest and highest value of each variable, in numbers and sizes."""


@dataclass(frozen=True)
class Var:
    """A named integer: a loop index or a symbolic dimension."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Size:
    """An integer in low..high that a program is told when it runs; choices that do not change results expect `likely`."""

    name: str
    low: int
    high: int
    likely: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FloorDiv:
    """Floor division that did not simplify."""

    num: Dim
    den: Dim

    def __str__(self) -> str:
        return _spell_atom(self, str)


@dataclass(frozen=True)
class Mod:
    """Remainder, of the divisor's sign, that did not simplify."""

    num: Dim
    den: Dim

    def __str__(self) -> str:
        return _spell_atom(self, str)


Atom: TypeAlias = Union[Var, Size, FloorDiv, Mod]
Monomial: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class Index:
    """A non-constant integer polynomial; build one with `var` and the usual operators."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(init=False)  # hashing a polynomial is hot

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and self._hash == other._hash and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        if isinstance(other, int) and not other:
            return self
        sums = dict(_terms(self))
        for mono, coef in _terms(other):
            sums[mono] = sums.get(mono, 0) + coef
        return _make(sums)

    def __mul__(self, other: Dim) -> Dim:
        if isinstance(other, int):
            return self if other == 1 else Index(tuple((m, c * other) for m, c in self.terms)) if other else 0
        products: dict[Monomial, int] = {}
        for m1, c1 in _terms(self):
            for m2, c2 in _terms(other):
                mono = tuple(sorted(m1 + m2, key=str))
                products[mono] = products.get(mono, 0) + c1 * c2
        return _make(products)

    def __sub__(self, other: Dim) -> Dim:
        return self + other * -1

    def __neg__(self) -> Dim:
        return self * -1

    def __radd__(self, other: int) -> Dim:
        return self + other

    def __rmul__(self, other: int) -> Dim:
        return self * other

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
        return spell(self)

    __repr__ = __str__


def spell(d: Dim, name: Callable[[str], str] = str) -> str:
    """`d` as text that parses back to it; `name` spells the variables."""
    text = ""
    for mono, coef in _terms(d):
        sign = (" - " if coef < 0 else " + ") if text else ("-" if coef < 0 else "")
        factors = [str(abs(coef))] if abs(coef) != 1 or not mono else []
        alone = not factors and len(mono) == 1 and sign != "-"  # a division among other factors needs brackets
        atoms = [_spell_atom(a, name) for a in mono]
        text += sign + "*".join(
            [s if alone or isinstance(a, (Var, Size)) else f"({s})" for a, s in zip(mono, atoms)] + factors
        )
    return text


def _spell_atom(a: Atom, name: Callable[[str], str]) -> str:
    if isinstance(a, (Var, Size)):
        return name(a.name) if isinstance(a, Var) else a.name
    return f"{_wrap(a.num, name)}{'//' if isinstance(a, FloorDiv) else '%'}{_wrap(a.den, name)}"


def _wrap(d: Dim, name: Callable[[str], str]) -> str:
    text = spell(d, name)
    plain = d >= 0 if isinstance(d, int) else len(d.terms) == 1 and d.terms[0][1] == 1 and _is_var(d.terms[0][0])
    return text if plain else f"({text})"


def _is_var(mono: Monomial) -> bool:
    return len(mono) == 1 and isinstance(mono[0], (Var, Size))


def _terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    return d.terms if isinstance(d, Index) else (((), d),)


def _order(term: tuple[Monomial, int]) -> tuple[bool, str]:
    return _rank(term[0])


@lru_cache(maxsize=65536)
def _rank(mono: Monomial) -> tuple[bool, str]:
    """Where a monomial stands in a sum: by its text, the constant last."""
    return (not mono, "*".join(map(str, mono)))


def _make(sums: Mapping[Monomial, int]) -> Dim:
    joined = _join_digits(sums)
    if joined is not None:
        return joined
    kept = [(m, c) for m, c in sums.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return Index(tuple(sorted(kept, key=_order)))


def _join_digits(sums: Mapping[Monomial, int]) -> Dim | None:
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
                factor: Dim = Index(((tuple(others), coef),)) if others else coef
                return _make(rest) + atom.num * factor
    return None


def var(name: str) -> Index:
    """The variable `name` as an `Index`."""
    return _atom(Var(name))


def size(name: str, low: int, high: int, likely: int) -> Index:
    """The size `name`, as an `Index`."""
    return _atom(Size(name, low, high, likely))


@lru_cache(maxsize=65536)
def _atom(atom: Atom) -> Index:
    return Index((((atom,), 1),))


def _split(num: Dim, den: int) -> tuple[Dim, Dim]:
    """`num` as `quotient * den + rest`, taking out every term whose coefficient `den` divides."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for mono, coef in _terms(num):
        if mono:
            q, r = (coef // den, 0) if coef % den == 0 else (0, coef)
        else:
            q, r = divmod(coef, den)
        quotient[mono], rest[mono] = q, r
    return _make(quotient), _make(rest)


def _split_by_size(num: Dim, den: Index) -> tuple[Dim, Dim]:
    """`num` as `quotient * den + rest`, taking out every term that `den` divides."""
    if len(den.terms) != 1:
        return (1, 0) if num == den else (0, num)
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
    return _make(quotient), _make(rest)


def _fits_below(rest: Dim, den: Index, bounds: Bounds | None) -> bool:
    """Whether `rest` is known to be in 0..den-1."""
    low, gap = interval(rest, bounds), interval(den - rest, bounds)
    return rest == 0 or (low is not None and gap is not None and low[0] >= 0 and gap[0] > 0)


def floordiv(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """`num // den`, simplified; `bounds` on variables let more of it vanish."""
    if isinstance(den, Index):
        quotient, rest = _split_by_size(num, den)
        return quotient if _fits_below(rest, den, bounds) else quotient + _atom(FloorDiv(rest, den))
    if den == 0:
        raise ZeroDivisionError(f"{num} // 0")
    quotient, rest = _split(num, den)
    if isinstance(rest, int):
        return quotient + rest // den
    if den > 0 and (known := interval(rest, bounds)) is not None and known[0] // den == known[1] // den:
        return quotient + known[0] // den
    return quotient + _atom(FloorDiv(*_reduce_fraction(rest, den)))


def mod(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """`num % den`, simplified; `bounds` on variables let more of it vanish."""
    if isinstance(den, Index):
        _, rest = _split_by_size(num, den)
        return rest if _fits_below(rest, den, bounds) else _atom(Mod(rest, den))
    if den == 0:
        raise ZeroDivisionError(f"{num} % 0")
    _, rest = _split(num, den)
    if isinstance(rest, int):
        return rest % den
    if den > 0 and (known := interval(rest, bounds)) is not None and known[0] // den == known[1] // den:
        return rest - known[0] // den * den
    return _atom(Mod(rest, den))


def _reduce_fraction(num: Dim, den: int) -> tuple[Dim, int]:
    """Cancel a common factor of every coefficient of `num` and `den`."""
    from math import gcd

    common = reduce(gcd, (c for _, c in _terms(num)), den)
    return (_make({m: c // common for m, c in _terms(num)}), den // common) if common > 1 else (num, den)


def interval(d: Dim, bounds: Bounds | None) -> tuple[int, int] | None:
    """Inclusive bounds of `d`, or None where a variable has none."""
    if bounds and any(isinstance(b, Index) for v in variables(d) for b in bounds.get(v, ())):
        ends = (extreme(d, bounds, 0), extreme(d, bounds, 1))
        first, last = (None if e is None else interval(e, bounds) for e in ends)
        return (first[0], last[1]) if first and last else None
    plain, closer = _sum_of_intervals(d, bounds), _as_remainders(d)
    other = plain if closer is d else _sum_of_intervals(closer, bounds)
    return (max(plain[0], other[0]), min(plain[1], other[1])) if plain and other else plain


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


def _as_remainders(d: Dim) -> Dim:
    """`d` with `n - n//b*b` as `n%b`, whose bounds are closer, where `n` is made of sizes."""
    if not any(isinstance(a, FloorDiv) and sizes(a.num) for mono, _ in _terms(d) for a in mono):
        return d
    total: Dim = 0
    for mono, coef in _terms(d):
        (a, *more) = mono or (None,)
        if not more and isinstance(a, FloorDiv) and isinstance(a.den, int) and coef % a.den == 0 and sizes(a.num):
            total = total + (a.num - _atom(Mod(a.num, a.den))) * (coef // a.den)
        else:
            total = total + Index(((mono, coef),)) if mono else total + coef
    return total


def extreme(d: Dim, bounds: Bounds, end: int) -> Dim | None:
    """The lowest (`end` 0) or highest (1) value of `d` as variables that are bounded by sizes allow; None where it has none."""
    total: Dim = 0
    for mono, coef in _terms(d):
        term: Dim = coef
        moving = [a for a in mono if isinstance(a, Var) and any(isinstance(b, Index) for b in bounds.get(a.name, ()))]
        others = [a for a in mono if a not in moving]
        if len(moving) > 1 or any(_bounded_by_sizes(a, bounds) for a in others):
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


def _bounded_by_sizes(a: Atom, bounds: Bounds) -> bool:
    """Whether a division or remainder holds a variable that is bounded by sizes."""
    names = variables(_atom(a)) if isinstance(a, (FloorDiv, Mod)) else ()
    return any(isinstance(b, Index) for v in names for b in bounds.get(v, ()))


def _atom_interval(atom: Atom, bounds: Bounds) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        return bounds.get(atom.name)  # type: ignore[return-value]  # bounds in sizes have been put in place
    if isinstance(atom, Size):
        return bounds.get(atom.name, (atom.low, atom.high))  # type: ignore[return-value]  # likewise
    if not isinstance(atom.den, int) or atom.den <= 0:
        return None
    inner = interval(atom.num, bounds)
    if isinstance(atom, Mod):
        return (0, atom.den - 1)
    return None if inner is None else (inner[0] // atom.den, inner[1] // atom.den)


def rebuild(d: Dim, atom: Callable[[Atom], Dim]) -> Dim:
    """`d` with every atom replaced by `atom(a)` and the arithmetic done again."""
    total: Dim = 0
    for mono, coef in _terms(d):
        product: Dim = coef
        for a in mono:
            product = product * atom(a)
        total = total + product
    return total


def substitute(d: Dim, values: Mapping[str, Dim], bounds: Bounds | None = None) -> Dim:
    """`d` with variables replaced, simplified under `bounds` of the variables that stay."""
    if isinstance(d, int):
        return d

    def atom(a: Atom) -> Dim:
        if isinstance(a, (Var, Size)):
            return values[a.name] if a.name in values else _atom(a)
        num, den = substitute(a.num, values, bounds), substitute(a.den, values, bounds)
        return (floordiv if isinstance(a, FloorDiv) else mod)(num, den, bounds)

    return rebuild(d, atom)


def simplify(d: Dim, bounds: Bounds) -> Dim:
    """`d` with the divisions and remainders that `bounds` decide taken out."""
    plain = isinstance(d, int) or not any(isinstance(a, (FloorDiv, Mod)) for mono, _ in d.terms for a in mono)
    return d if plain else substitute(d, {}, bounds)


@lru_cache(maxsize=65536)
def variables(d: Dim) -> frozenset[str]:
    """Names of the variables in `d`; a size is none."""
    found: set[str] = set()
    for mono, _ in _terms(d):
        for a in mono:
            if isinstance(a, (FloorDiv, Mod)):
                found |= variables(a.num) | variables(a.den)
            elif isinstance(a, Var):
                found.add(a.name)
    return frozenset(found)


@lru_cache(maxsize=65536)
def sizes(d: Dim) -> frozenset[Size]:
    """The sizes in `d`."""
    found: set[Size] = set()
    for mono, _ in _terms(d):
        for a in mono:
            if isinstance(a, (FloorDiv, Mod)):
                found |= sizes(a.num) | sizes(a.den)
            elif isinstance(a, Size):
                found.add(a)
    return frozenset(found)


@lru_cache(maxsize=65536)
def likely(d: Dim) -> Dim:
    """`d` with every size as it is likely to be: for weighing costs, never for what must hold."""
    return substitute(d, {s.name: s.likely for s in sizes(d)})


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """The integer `d` denotes; a missing variable raises KeyError."""
    if isinstance(d, int):
        return d
    missing = sorted((variables(d) | {s.name for s in sizes(d)}) - set(values))
    if missing:
        raise KeyError(f"no value for {', '.join(missing)} in {d}")
    result = substitute(d, dict(values))
    assert isinstance(result, int)
    return result


def coefficient(d: Dim, name: str) -> int | None:
    """The integer step of `d` per unit of variable `name`; None where `d` is not linear in it."""
    step = 0
    for mono, coef in _terms(d):
        if mono == (Var(name),):
            step = coef
        elif any(name in variables(_atom(a)) for a in mono):
            return None
    return step


def step(d: Dim, name: str) -> Dim | None:
    """The step of `d` per unit of variable `name`, in numbers and sizes; None where `d` is not linear in it."""
    total: Dim = 0
    for mono, coef in _terms(d):
        if Var(name) not in mono:
            if any(name in variables(_atom(a)) for a in mono):
                return None
            continue
        others = list(mono)
        others.remove(Var(name))
        if any(not isinstance(a, Size) for a in others):
            return None
        total = total + _make({tuple(others): coef})
    return total


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def ceildiv(num: Dim, den: int) -> Dim:
    """`num / den` rounded up."""
    return -floordiv(-num, den)
