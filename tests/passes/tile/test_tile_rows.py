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
