"""tile: lane loops around walks over rows of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.cost.machine import AVX512
from tests.passes.tile.test_tile import sizes

WALK = """kernel @k(in %x: f32[4, {rows}, {n}], out %y: f32[4, {n}]) {{ parallel %i in 0..4 {{
  parallel %j in 0..{n} tile 4 lanes 4 {{
    %s = reduce {sum} {{ yield {value} }}
    store %s, %y[%i, %j] }} }} }}"""


@pytest.mark.parametrize("value", ["%x[%i, %k, %j]", "%x[%i, %k, %j] * %x[%i, %k, %j]"])
def test_rows_that_a_cache_does_not_hold_are_walked_whole(value: str) -> None:
    """Up to the registers in the first-level cache, and beyond them in the second-level one."""
    machine = replace(AVX512, l1=4096, l2=1 << 15, registers=8)

    def size(rows: int, n: int) -> int:
        return sizes(WALK.format(rows=rows, n=n, sum=f"add %k in 0..{rows}", value=value), machine=machine)["j"]

    assert size(rows=35, n=30) == 30
    assert size(rows=34, n=30) < 30
    assert size(rows=220, n=38) == 38
    assert size(rows=200, n=38) < 38


@pytest.mark.parametrize(("step", "width"), [(3, 30), (2, 16)])
def test_overlapping_windows_are_no_walk(step: int, width: int) -> None:
    text = WALK.format(rows=60, n=30, sum="max %w in 0..20, %k in 0..3", value=f"%x[%i, {step}*%w + %k, %j]")
    assert sizes(text, machine=replace(AVX512, l1=4096))["j"] == width


def test_a_product_and_sums_of_squares_of_its_results_have_the_same_lanes() -> None:
    """As a layer norm behind a product has them: the rows of the product fill the registers, so that tiles are one vector wide."""
    text = """kernel @k(in %x: f32[145, 196], const %w: f32[196, 196], out %y: f32[145, 196]) {
      parallel %i in 0..196 tile 16 lanes 16 {
        local %t: f32[145]
        local %d: f32[145]
        %sum = reduce add %j in 0..145 {
          %p = reduce add %k in 0..196 { yield %x[%j, %k] * %w[%i, %k] }
          %t.j = %p
          store %t.j, %t[%j]
          yield %t.j
        }
        %v = %sum / 145.0
        %squares = reduce add %r in 0..145 { %d.r = %t[%r] - %v  store %d.r, %d[%r]  yield %d.r * %d.r }
        for %n in 0..145 { store %d[%n] / %squares, %y[%n, %i] }
      } }"""
    machine = replace(AVX512, fma_per_cycle=1)  # rows rather than vectors
    found = sizes(text, machine=machine)
    assert found["j"] * -(-found["i"] // 16) < AVX512.registers
