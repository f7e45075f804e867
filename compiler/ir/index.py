"""Integer index arithmetic: tensor dimensions and addresses.

A `Dim` is a Python `int` or an `Index`: a polynomial with integer coefficients over *atoms*.  An atom is a variable
(a loop index, a symbolic dimension) or a floor division or remainder that does not simplify:

    dim  ::= int | sum of  coefficient * atom * atom ...
    atom ::= Var(name) | FloorDiv(dim, dim) | Mod(dim, dim)

Arithmetic keeps the polynomial in one canonical form, so equal expressions compare equal and hash alike, and a constant
result is always a plain `int`.  All floor divisions round toward minus infinity, as Python's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, TypeAlias, Union

from compiler.errors import ArgumentError

Dim: TypeAlias = Union[int, "Index"]
Bounds: TypeAlias = Mapping[str, tuple[int, int]]
"""Inclusive lowest and highest value of each variable."""


@dataclass(frozen=True)
class Var:
    """A named integer: a loop index or a symbolic dimension."""

    name: str

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


Atom: TypeAlias = Union[Var, FloorDiv, Mod]
Monomial: TypeAlias = tuple[Atom, ...]


@dataclass(frozen=True, eq=False)
class Index:
    """A non-constant integer polynomial; build one with `var` and the usual operators."""

    terms: tuple[tuple[Monomial, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]  # set above: hashing a polynomial is hot

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and hash(self) == hash(other) and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        if other == 0:
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
        text += sign + "*".join([s if alone or isinstance(a, Var) else f"({s})" for a, s in zip(mono, atoms)] + factors)
    return text


def _spell_atom(a: Atom, name: Callable[[str], str]) -> str:
    if isinstance(a, Var):
        return name(a.name)
    return f"{_wrap(a.num, name)}{'//' if isinstance(a, FloorDiv) else '%'}{_wrap(a.den, name)}"


def _wrap(d: Dim, name: Callable[[str], str]) -> str:
    text = spell(d, name)
    plain = d >= 0 if isinstance(d, int) else len(d.terms) == 1 and d.terms[0][1] == 1 and _is_var(d.terms[0][0])
    return text if plain else f"({text})"


def _is_var(mono: Monomial) -> bool:
    return len(mono) == 1 and isinstance(mono[0], Var)


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
            if not coef or not isinstance(atom, Mod) or not isinstance(atom.den, int):
                continue
            others = list(mono)
            others.remove(atom)
            whole = FloorDiv(*_reduce_fraction(atom.num, atom.den))
            partner = tuple(sorted([*others, whole], key=str))
            if sums.get(partner) == coef * atom.den:
                rest = {m: c for m, c in sums.items() if m not in (mono, partner)}
                factor: Dim = Index(((tuple(others), coef),)) if others else coef
                return _make(rest) + atom.num * factor
    return None


def var(name: str) -> Index:
    """The variable `name` as an `Index`."""
    return Index((((Var(name),), 1),))


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


def _exact_quotient(num: Dim, den: Index) -> Dim | None:
    """`num / den` where `den` is one monomial that divides every term, else None."""
    if len(den.terms) != 1:
        return 1 if num == den else None
    (mono, coef), quotient = den.terms[0], {}
    for m, c in _terms(num):
        left = list(m)
        for atom in mono:
            if atom not in left:
                return None
            left.remove(atom)
        if c % coef:
            return None
        quotient[tuple(left)] = c // coef
    return _make(quotient)


def floordiv(num: Dim, den: Dim, bounds: Bounds | None = None) -> Dim:
    """`num // den`, simplified; `bounds` on variables let more of it vanish."""
    if isinstance(den, Index):
        exact = _exact_quotient(num, den)
        return exact if exact is not None else _atom(FloorDiv(num, den))
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
        return 0 if _exact_quotient(num, den) is not None else _atom(Mod(num, den))
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


def _atom_interval(atom: Atom, bounds: Bounds) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        return bounds.get(atom.name)
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
        if isinstance(a, Var):
            return values.get(a.name, _atom(a))
        num, den = substitute(a.num, values, bounds), substitute(a.den, values, bounds)
        return (floordiv if isinstance(a, FloorDiv) else mod)(num, den, bounds)

    return rebuild(d, atom)


def simplify(d: Dim, bounds: Bounds) -> Dim:
    """`d` with the divisions and remainders that `bounds` decide taken out."""
    return substitute(d, {}, bounds)


def without_constant(d: Dim) -> Dim:
    """`d` less its constant term."""
    return Index(tuple(t for t in d.terms if t[0])) if isinstance(d, Index) else 0


@lru_cache(maxsize=65536)
def variables(d: Dim) -> frozenset[str]:
    """Names of the variables in `d`."""
    found: set[str] = set()
    for mono, _ in _terms(d):
        for a in mono:
            found |= {a.name} if isinstance(a, Var) else variables(a.num) | variables(a.den)
    return frozenset(found)


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """The integer `d` denotes; a missing variable raises KeyError."""
    if isinstance(d, int):
        return d
    missing = sorted(variables(d) - set(values))
    if missing:
        raise KeyError(f"no value for {', '.join(missing)} in {d}")
    result = substitute(d, dict(values))
    assert isinstance(result, int)
    return result


def evaluate_arrays(d: Dim, values: Mapping[str, Any]) -> Any:
    """What `d` denotes where variables stand for integers or integer arrays, which broadcast."""

    def atom(a: Atom) -> Any:
        if isinstance(a, Var):
            return values[a.name]
        num, den = evaluate_arrays(a.num, values), evaluate_arrays(a.den, values)
        return num // den if isinstance(a, FloorDiv) else num % den

    return rebuild(d, atom)


def bind_symbols(sizes: Iterable[tuple[Dim, int]]) -> dict[str, int]:
    """The variables for which every dimension has its size; ArgumentError where there are none.

    Each variable must occur in some dimension that is linear in it alone.
    """
    values: dict[str, int] = {}
    pairs = list(sizes)
    for d, size in pairs:
        names = variables(d)
        if len(names) == 1 and (step := coefficient(d, name := next(iter(names)))):
            values.setdefault(name, (size - evaluate(substitute(d, {name: 0}), {})) // step)
    for d, size in pairs:
        if not variables(d) <= set(values):
            raise ArgumentError(f"the size {d} does not determine {', '.join(sorted(variables(d) - set(values)))}")
        if evaluate(d, values) != size:
            known = ", ".join(f"{n} = {values[n]}" for n in sorted(variables(d)))
            raise ArgumentError(f"a dimension of size {size} does not fit {d}" + (f" where {known}" if known else ""))
    return values


def coefficient(d: Dim, name: str) -> int | None:
    """The integer step of `d` per unit of variable `name`; None where `d` is not linear in it."""
    step = 0
    for mono, coef in _terms(d):
        if mono == (Var(name),):
            step = coef
        elif any(name in variables(_atom(a)) for a in mono):
            return None
    return step


def product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def ceildiv(num: Dim, den: int) -> Dim:
    """`num / den` rounded up."""
    return -floordiv(-num, den)
