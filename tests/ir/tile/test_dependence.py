"""Dependences between accesses, against all iterations of small loops."""

from __future__ import annotations

import itertools
import random

import pytest

from compiler.ir.symbolic.index_expr import Dim, evaluate, var
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.dependence import conflicting_buffer, is_confined
from compiler.ir.tile.kernel import For

i, j = var("i"), var("j")
EXTENTS = {"i": 5, "j": 3}


def touch_in_two_iterations(a: Dim, b: Dim) -> bool:
    """True if two iterations of %i touch one element, whatever %j is in each."""
    steps = [range(EXTENTS["i"]), range(EXTENTS["j"])]
    points = list(itertools.product(*steps))
    return any(
        evaluate(a, dict(zip("ij", p, strict=True))) == evaluate(b, dict(zip("ij", q, strict=True)))
        for p, q in itertools.product(points, points)
        if p[0] != q[0]
    )


@pytest.mark.parametrize(
    ("a", "b", "confined"),
    [
        (i, i, True),
        (i, i + 1, False),
        (i * 2, i * 2 + 1, True),
        (i * 3 + j, i * 3 + j, True),
        (i * 2 + j, i * 2 + j, False),
        (i // 2, i // 2, False),
        (j, j, False),
        (i, i * 2, False),
        (-i, -i, True),
    ],
)
def test_accesses_confined_to_one_iteration(a: Dim, b: Dim, confined: bool) -> None:
    assert is_confined((a,), (b,), "i", {"j": (0, 2)}) is confined
    assert not (confined and touch_in_two_iterations(a, b))


@pytest.mark.parametrize(
    ("a", "b", "confined"),
    [
        (j * 5 + i, j * 5 + i, True),
        (j * 10 + i * 2 + 1, j * 10 + i * 2 + 1, True),
        (j * 4 + i, j * 4 + i, False),
        (j * 5 + i, j * 5 + i + 1, False),
        (j * 5 - i, j * 5 + i, False),
    ],
)
def test_inner_loops_that_step_over_all_iterations(a: Dim, b: Dim, confined: bool) -> None:
    """As many as the loop has: %i is below 5."""
    assert is_confined((a,), (b,), "i", {"i": (0, 4), "j": (0, 2)}) is confined
    assert not is_confined((a,), (b,), "i", {"j": (0, 2)})
    assert not (confined and touch_in_two_iterations(a, b))


@pytest.mark.parametrize(
    ("a", "b", "confined"),
    [
        ((i // 2, i % 2), (i // 2, i % 2), True),
        ((i // 2, i % 3), (i // 2, i % 3), False),
        ((i // 4, i % 4 // 2, i % 4 % 2), (i // 4, i % 4 // 2, i % 4 % 2), True),
        ((i // 4, i % 4 // 2, (i + 1) % 4 % 2), (i // 4, i % 4 // 2, i % 4 % 2), False),
        ((i // 2, j, i % 2), (i // 2, j, i % 2), False),  # only neighbours are joined
        ((i // 2, i % 2), (i // 2, (i + 1) % 2), False),
    ],
)
def test_quotient_and_remainder_tell_an_iteration(a: tuple[Dim, ...], b: tuple[Dim, ...], confined: bool) -> None:
    assert is_confined(a, b, "i", {"j": (0, 2)}) is confined


def test_random_subscripts_are_never_confined_wrongly() -> None:
    rng, found = random.Random(0), 0
    for _ in range(1500):
        step = rng.randint(-4, 4)
        a, b = (i * step + j * rng.choice([-12, -5, -2, -1, 0, 1, 2, 5, 8]) + rng.randint(-3, 3) for _ in range(2))
        if is_confined((a,), (b,), "i", {"i": (0, 4), "j": (0, 2)}):
            found += 1
            assert not touch_in_two_iterations(a, b), (a, b)
    assert found > 20


def test_a_value_that_is_computed_inside_is_unknown() -> None:
    n = var("n")
    assert is_confined((i + n,), (i + n,), "i", {})
    assert not is_confined((i + n,), (i + n,), "i", {"n": None})


@pytest.mark.parametrize(
    ("first", "second", "buffer"),
    [
        ("store %x[%i], %y[%i]", "store %y[%i], %z[%i]", None),
        ("store %x[%i], %y[%i]", "store %y[8 - %i], %z[%i]", "y"),
        ("store %x[%i], %y[%i]", "%n = cast<i64>(%x[%i])  store %y[%n], %z[%i]", "y"),
        ("store %z[%i], %y[%i]", "store %x[%i], %z[0]", "z"),
        ("store %x[%i], %y[%i]", "store %x[8 - %i], %z[%i]", None),
    ],
)
def test_blocks_of_a_loop(first: str, second: str, buffer: str | None) -> None:
    text = f"for %i in 0..9 {{ {first} }} for %i in 0..9 {{ {second} }}"
    a, b = parse_kernel(f"kernel @k(in %x: f32[9], inout %y: f32[9], inout %z: f32[9]) {{ {text} }}").body
    assert isinstance(a, For)
    assert isinstance(b, For)
    assert conflicting_buffer(a.body, b.body, "i") == buffer
