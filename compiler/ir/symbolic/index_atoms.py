"""What index expressions are made of, and their text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    from compiler.ir.symbolic.index_expr import Dim


@dataclass(frozen=True)
class Var:
    """A named integer: a loop index or a symbolic dimension."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)  # the generated one takes twice as long, and hashing names is hot

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DynamicSize:
    """An integer in low..high that a program is told when it runs; choices that do not change results expect `likely`."""

    name: str
    low: int
    high: int
    hint: int

    def __str__(self) -> str:
        return self.name


DEFAULT_SIZE_HINT = 500
"""What a size is expected to be that may be small: enough for all that pays for long loops, and no multiple of a vector."""


SMALL_SIZE_HINT = 84
"""The same in code that is for small sizes alone."""


def choose_size_hint(low: int, high: int, observed: int, default: int = DEFAULT_SIZE_HINT) -> int:
    """What choices expect of a size in low..high: the same whatever was `seen` first, unless it cannot be small."""
    return observed if low > DEFAULT_SIZE_HINT else min(max(default, low), high)


class BinaryAtom:
    """Two numbers joined; sums and products are ordered by its text and found by its hash, so each is made once."""

    @cached_property
    def _text(self) -> str:
        assert isinstance(self, (FloorDiv, Mod, Min))
        return _format_atom(self, str)

    @cached_property
    def _hash(self) -> int:
        assert isinstance(self, (FloorDiv, Mod, Min))
        return hash(operands(self))

    def __str__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class FloorDiv(BinaryAtom):
    """Floor division that did not simplify."""

    num: Dim
    den: Dim

    __hash__ = BinaryAtom.__hash__


@dataclass(frozen=True)
class Mod(BinaryAtom):
    """Remainder, of the divisor's sign, that did not simplify."""

    num: Dim
    den: Dim

    __hash__ = BinaryAtom.__hash__


@dataclass(frozen=True)
class Min(BinaryAtom):
    """The lesser of two numbers neither of which is known to be it."""

    lhs: Dim
    rhs: Dim

    __hash__ = BinaryAtom.__hash__


CompoundAtom: TypeAlias = Union[FloorDiv, Mod, Min]
Atom: TypeAlias = Union[Var, DynamicSize, CompoundAtom]
Monomial: TypeAlias = tuple[Atom, ...]


def operands(a: CompoundAtom) -> tuple[Dim, Dim]:
    """What a compound atom is made of."""
    return (a.lhs, a.rhs) if isinstance(a, Min) else (a.num, a.den)


def terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    """The products that `d` is the sum of, and how often each."""
    return (((), d),) if isinstance(d, int) else d.terms


def constant_term(d: Dim) -> int:
    """What `d` has beside its terms with variables and sizes."""
    return dict(terms(d)).get((), 0)


def map_atoms(d: Dim, atom: Callable[[Atom], Dim]) -> Dim:
    """`d` with every atom replaced by `atom(a)`, in whatever arithmetic these have."""
    total: Dim = 0
    for mono, coef in terms(d):
        product: Dim = coef
        for a in mono:
            product = product * atom(a)
        total = total + product
    return total


@lru_cache(maxsize=65536)
def free_symbols(d: Dim) -> frozenset[Var | DynamicSize]:
    """The variables and sizes that `d` is made of."""
    found: set[Var | DynamicSize] = set()
    for a in (a for mono, _ in terms(d) for a in mono):
        found |= {a} if isinstance(a, (Var, DynamicSize)) else frozenset().union(*map(free_symbols, operands(a)))
    return frozenset(found)


def has_minimum(d: Dim) -> bool:
    """Whether a minimum is part of `d`."""
    compound = (a for mono, _ in terms(d) for a in mono if not isinstance(a, (Var, DynamicSize)))
    return any(isinstance(a, Min) or any(map(has_minimum, operands(a))) for a in compound)


def format_index(d: Dim, format_var: Callable[[str], str] = str) -> str:
    """`d` as text that parses back to it; `name` spells the variables."""
    text = ""
    for mono, coef in terms(d):
        sign = (" - " if coef < 0 else " + ") if text else ("-" if coef < 0 else "")
        factors = [str(abs(coef))] if abs(coef) != 1 or not mono else []
        alone = not factors and len(mono) == 1 and sign != "-"  # a division among other factors needs brackets
        atoms = [str(a) if format_var is str else _format_atom(a, format_var) for a in mono]
        text += sign + "*".join(
            [s if alone or not isinstance(a, (FloorDiv, Mod)) else f"({s})" for a, s in zip(mono, atoms)] + factors
        )
    return text


def _format_atom(a: Atom, format_var: Callable[[str], str]) -> str:
    if isinstance(a, (Var, DynamicSize)):
        return format_var(a.name) if isinstance(a, Var) else a.name
    if isinstance(a, Min):
        return f"min({format_index(a.lhs, format_var)}, {format_index(a.rhs, format_var)})"
    return f"{_parenthesize(a.num, format_var)}{'//' if isinstance(a, FloorDiv) else '%'}{_parenthesize(a.den, format_var)}"


def _parenthesize(d: Dim, format_var: Callable[[str], str]) -> str:
    """A dividend or divisor, in brackets where it is more than a number or a name."""
    text = format_index(d, format_var)
    plain = d >= 0 if isinstance(d, int) else len(d.terms) == 1 and d.terms[0][1] == 1 and _is_primary(d.terms[0][0])
    return text if plain else f"({text})"


def _is_primary(mono: Monomial) -> bool:
    return len(mono) == 1 and not isinstance(mono[0], (FloorDiv, Mod))
