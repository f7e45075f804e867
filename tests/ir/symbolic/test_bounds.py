"""What index expressions are at most and at least, whatever the sizes in them."""

from __future__ import annotations

import pytest

from compiler.ir.symbolic.bounds import is_provably_at_most, lower_bound
from compiler.ir.symbolic.index_expr import Dim, ceildiv, dynamic_size, interval

S = dynamic_size("s", 4, 1000, 100)


@pytest.mark.parametrize(
    ("a", "b", "known"),
    [
        (2, 2, True),
        (S, S + 1, True),
        (S, 1000, True),
        (S, 999, False),
        (ceildiv(S - 1, 4), ceildiv(S, 4), True),
        (ceildiv(S, 4), ceildiv(S - 1, 4), False),
        (ceildiv(S, 4), ceildiv(S - 1, 4) + 1, True),
        (3 * (S // 8), 3 * ((S + 9) // 8) - 3, True),
        (S // 4, S // 8, False),
    ],
    ids=str,
)
def test_what_holds_for_every_size_is_known_and_nothing_else_is_claimed(a: Dim, b: Dim, known: bool) -> None:
    assert is_provably_at_most(a, b) == known


def test_two_quotients_are_bounded_together() -> None:
    """Apart, they might differ by hundreds."""
    assert lower_bound(ceildiv(S, 4) - ceildiv(S - 3, 4)) == 0
    assert lower_bound(ceildiv(S - 3, 4) - ceildiv(S, 4)) == -1
    assert interval((S + 1) // 2 - S // 2, {}) == (0, 1)


def test_a_quotient_of_a_quotient_of_a_size_takes_no_longer_to_bound() -> None:
    """Each level is looked at in two ways: sixty levels would never end."""
    d: Dim = S
    for k in range(60):
        d = (d + 1) // 2 + (k % 2) * 1000
    bounds = interval(d, {})
    assert bounds is not None
    assert bounds[0] <= bounds[1]


def test_a_quotient_by_a_size_is_bounded_where_the_size_is_above_zero() -> None:
    size = dynamic_size("n", 0, 1000, 100)
    assert interval(8 // size + 1, {"n": (3, 5)}) == (2, 3)
    assert interval(-8 // size, {"n": (3, 5)}) == (-3, -2)
    assert interval((S + 7) % S, {}) == (0, 999)
    assert interval(8 // size, {}) is None


def test_what_is_less_than_a_size_away_from_zero_has_a_known_quotient() -> None:
    size, short = dynamic_size("n", 5, 1000, 100), dynamic_size("m", 2, 1000, 100)
    assert ((3 - size) // size, (3 - size) % size) == (-1, 3)
    assert (-3 // size, -3 % size) == (-1, size - 3)
    assert str(-3 % short) == "(-3)%m"
