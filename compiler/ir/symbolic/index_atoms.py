"""Atoms of index expressions, and the expressions' text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        return hash(self.name)  # half the time of the generated hash; hashing names is hot

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class DynamicSize:
    """A size in low..high (inclusive) that a program gets at run time; `hint` is the value that cost models assume."""

    name: str
    low: int
    high: int
    hint: int

    def __str__(self) -> str:
        return self.name

    def clamp(self, size: int) -> int:
        """Return the size in range that is nearest to `size`."""
        return min(max(size, self.low), self.high)


DEFAULT_SIZE_HINT = 500
"""Hint of a dynamic size that may be small.

Chosen empirically: large enough for optimizations of long loops to pay, and not a multiple of a vector width.
"""

SMALL_SIZE_HINT = 84
"""Hint of a dynamic size in the code variant for small sizes; chosen empirically."""


def choose_size_hint(low: int, high: int, observed: int, default: int = DEFAULT_SIZE_HINT) -> int:
    """Return the hint of a size in low..high: `default` clamped to the range.

    If the size cannot be small, the hint is `observed`, the size of the first call.  Otherwise that is ignored, so that
    the generated code does not depend on it.
    """
    return observed if low > DEFAULT_SIZE_HINT else min(max(default, low), high)


class BinaryAtom:
    """An atom of two operands.  Text (the sort key in sums and products) and hash are cached."""

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
    """A floor division that does not simplify."""

    num: Dim
    den: Dim

    __hash__ = BinaryAtom.__hash__


@dataclass(frozen=True)
class Mod(BinaryAtom):
    """A remainder with the sign of the divisor that does not simplify."""

    num: Dim
    den: Dim

    __hash__ = BinaryAtom.__hash__


@dataclass(frozen=True)
class Min(BinaryAtom):
    """A minimum that does not simplify."""

    lhs: Dim
    rhs: Dim

    __hash__ = BinaryAtom.__hash__


CompoundAtom: TypeAlias = Union[FloorDiv, Mod, Min]
Atom: TypeAlias = Union[Var, DynamicSize, CompoundAtom]
Monomial: TypeAlias = tuple[Atom, ...]
RelevantBounds: TypeAlias = frozenset[tuple[str, tuple["Dim", "Dim"]]]
NO_BOUNDS: RelevantBounds = frozenset()


def operands(a: CompoundAtom) -> tuple[Dim, Dim]:
    """Return the two operands of a compound atom."""
    return (a.lhs, a.rhs) if isinstance(a, Min) else (a.num, a.den)


def terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms of the sum `d` as (monomial, coefficient) pairs."""
    return (((), d),) if isinstance(d, int) else d.terms


def constant_term(d: Dim) -> int:
    """Return the constant term of `d`."""
    mono, coef = terms(d)[-1]  # the constant comes last
    return 0 if mono else coef


def map_atoms(d: Dim, atom: Callable[[Atom], Dim]) -> Dim:
    """Replace every atom of `d` by `atom(a)`; the values may be of any type with `+` and `*`."""
    total: Dim = 0
    for mono, coef in terms(d):
        product: Dim = coef
        for a in mono:
            product = product * atom(a)
        total = total + product
    return total


@lru_cache(maxsize=65536)
def free_symbols(d: Dim) -> frozenset[Var | DynamicSize]:
    """Return the variables and dynamic sizes in `d`."""
    symbols: set[Var | DynamicSize] = set()
    for a in (a for mono, _ in terms(d) for a in mono):
        symbols |= {a} if isinstance(a, (Var, DynamicSize)) else frozenset().union(*map(free_symbols, operands(a)))
    return frozenset(symbols)


def relevant_bounds(d: Dim, bounds: Mapping[str, tuple[Dim, Dim]] | None) -> RelevantBounds:
    """Return the bounds of the symbols in `d`, and of those in these bounds, as a key of caches."""
    if not bounds:
        return NO_BOUNDS
    inner = [(a.name, bounds[a.name]) for a in free_symbols(d) if a.name in bounds]
    outer = {a.name for _, limits in inner for b in limits if not isinstance(b, int) for a in free_symbols(b)}
    return frozenset(inner + [(name, bounds[name]) for name in outer if name in bounds] if outer else inner)


def has_minimum(d: Dim) -> bool:
    """Return True if `d` contains a minimum."""
    compound = (a for mono, _ in terms(d) for a in mono if not isinstance(a, (Var, DynamicSize)))
    return any(isinstance(a, Min) or any(map(has_minimum, operands(a))) for a in compound)


def format_index(d: Dim, format_var: Callable[[str], str] = str) -> str:
    """Return text that parses to `d`; `format_var` spells the variables."""
    text = ""
    for mono, coef in terms(d):
        sign = (" - " if coef < 0 else " + ") if text else ("-" if coef < 0 else "")
        factors = [str(abs(coef))] if abs(coef) != 1 or not mono else []
        single = not factors and len(mono) == 1 and sign != "-"  # a division among other factors needs brackets
        atoms = [str(a) if format_var is str else _format_atom(a, format_var) for a in mono]
        texts = [s if single or not isinstance(a, (FloorDiv, Mod)) else f"({s})" for a, s in zip(mono, atoms)]
        text += sign + "*".join(texts + factors)
    return text


def _format_atom(a: Atom, format_var: Callable[[str], str]) -> str:
    if isinstance(a, (Var, DynamicSize)):
        return format_var(a.name) if isinstance(a, Var) else a.name
    if isinstance(a, Min):
        return f"min({format_index(a.lhs, format_var)}, {format_index(a.rhs, format_var)})"
    operator = "//" if isinstance(a, FloorDiv) else "%"
    return f"{_parenthesize(a.num, format_var)}{operator}{_parenthesize(a.den, format_var)}"


def _parenthesize(d: Dim, format_var: Callable[[str], str]) -> str:
    """Return the text of a dividend or divisor, in brackets unless it is a number or a name."""
    text = format_index(d, format_var)
    primary = d >= 0 if isinstance(d, int) else len(d.terms) == 1 and d.terms[0][1] == 1 and _is_primary(d.terms[0][0])
    return text if primary else f"({text})"


def _is_primary(mono: Monomial) -> bool:
    return len(mono) == 1 and not isinstance(mono[0], (FloorDiv, Mod))
