"""Arithmetic and traffic, counted by hand."""

import pytest

from compiler.cost.estimates import count_bytes, count_flops
from compiler.ir.text.tile_parser import parse_kernel


def flops(body: str) -> int:
    return count_flops(parse_kernel(f"kernel @k(in %x: f32[8, 8], out %y: f32[8, 8]) {{ {body} }}"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("for %i in 0..8 { store %x[%i, 0], %y[%i, 0] }", 0),
        ("for %i in 0..8 { store %x[%i, 0] * 2.0 + 1.0, %y[%i, 0] }", 16),
        ("for %i in 0..8 tile 4 lanes 4 { store exp(%x[%i, 0]), %y[%i, 0] }", 8),
        ("for %i in 0..8 { store fma(%x[%i, 0], 2.0, 1.0), %y[%i, 0] }", 16),
        ("for %i in 0..8 { %s = reduce add %k in 0..8 { yield %x[%i, %k] * %x[%i, %k] }  store %s, %y[%i, 0] }", 128),
        ("for %i in 0..8 { for %j in 0..%i { store %x[%i, %j] + 1.0, %y[%i, %j] } }", 56),
        ("for %i in 0..8 { store where(%x[%i, 0] < 0.0, 0.0, %x[%i, 0]), %y[%i, 0] }", 0),
        ("for %i in 8..8 { store %x[%i, 0] + 1.0, %y[%i, 0] }", 0),
    ],
)
def test_flops(body, expected):
    assert flops(body) == expected


def test_bytes():
    text = (
        "kernel @k(in %x: bf16[8, 8], in %w: f32[8, 5]{{1/4, 0, 1%4}}, {role} %y: f32[8, 8]) {{ store 0.0, %y[0, 0] }}"
    )
    assert count_bytes(parse_kernel(text.format(role="out"))) == 128 + 8 * 8 * 4 + 256
    assert count_bytes(parse_kernel(text.format(role="inout"))) == 128 + 8 * 8 * 4 + 512


def test_bytes_of_a_table():
    lookup = "%v = %i[%n]   for %c in 0..16 { store %table[%v, %c]{more}, %y[%n, %c] }"
    text = (
        "kernel @k(in %table: f32[1000, 16], in %i: i64[4], out %y: f32[4, 16]) { for %n in 0..4 { " + lookup + " } }"
    )
    assert count_bytes(parse_kernel(text.replace("{more}", ""))) == 4 * 16 * 4 + 4 * 8 + 4 * 16 * 4
    assert count_bytes(parse_kernel(text.replace("{more}", " + %table[%n, %c]"))) == 64000 + 4 * 8 + 4 * 16 * 4
