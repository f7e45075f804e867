"""narrow: reductions over the points that take part, and what keeps its test."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def taps(inside: str, ranges: str = "%t in 0..3", otherwise: str = "0.0:f32") -> str:
    value = f"where(%in, load(%x[%i + %t], %in, 0.0) * load(%w[%t], %in, 0.0), {otherwise})"
    return f"""kernel @k(in %x: f32[12], in %w: f32[8], out %y: f32[8]) {{
      parallel %i in 0..8 {{
        %s = reduce add {ranges} {{ {inside} yield {value} }}
        store %s, %y[%i] }} }}"""


def plain(ranges: str) -> str:
    return f"""kernel @k(in %x: f32[12], in %w: f32[8], out %y: f32[8]) {{
      parallel %i in 0..8 {{
        %s = reduce add {ranges} {{ yield %x[%i + %t] * %w[%t] }}
        store %s, %y[%i] }} }}"""


@pytest.mark.parametrize(
    ("test", "left"),
    [
        ("index(%t - 1) >= 0", "1..3"),
        ("index(%t*2 - 1) >= 0", "1..3"),
        ("index(%t - 2) < 0", "0..2"),
        ("index(%t*2 - 3) < 0", "0..2"),
        ("index(-%t*2 + 1) < 0", "1..3"),
        ("index(-%t*2 + 3) >= 0", "0..2"),
        ("(index(%t - 1) >= 0) & (index(%t - 2) < 0)", "1..2"),
        ("index(%t) >= 0", "0..3"),
    ],
)
def test_a_range_is_cut_where_its_test_holds(test: str, left: str) -> None:
    check_pass(
        "tighten-reductions",
        before=taps(f"%in = {test}"),
        after=plain(f"%t in {left}"),
        remark="range of %s tightened to its guard",
    )


def test_nothing_is_left_of_a_test_that_never_holds() -> None:
    after = """kernel @k(in %x: f32[12], in %w: f32[8], out %y: f32[8]) {
      parallel %i in 0..8 { %s = 0.0:f32 store %s, %y[%i] } }"""
    check_pass("tighten-reductions", before=taps("%in = index(%t - 3) >= 0"), after=after)


@pytest.mark.parametrize(
    "kernel",
    [
        taps("%in = index(%i + %t - 3) >= 0"),
        taps("%in = index(%t - %u) >= 0", "%t in 0..3, %u in 0..2"),
        taps("%in = index(%t - 1) >= 0", otherwise="1.0"),
        taps("%in = (index(%t - 1) >= 0) | (index(%t - 2) < 0)"),
    ],
    ids=["a loop around it decides", "two ranges decide", "something else is added", "no box"],
)
def test_other_tests_stay(kernel: str) -> None:
    check_pass("tighten-reductions", unchanged=kernel)


def test_conditions_on_outer_loops_stay() -> None:
    """Sums of overlapping windows: which taps there are is a bound, whether a window lies in the image is a mask."""
    check_pass(
        "tighten-reductions",
        before=taps("%in = (index(%t - 1) >= 0) & (index(%i + %t - 4) < 0)"),
        after=taps("%in = index(%i + %t - 4) < 0", ranges="%t in 1..3"),
        remark="range of %s tightened to its guard",
    )
