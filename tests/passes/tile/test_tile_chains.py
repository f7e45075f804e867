"""tile: partial results of reductions that few vectors compute."""

from __future__ import annotations

import pytest

from tests.passes.tile.test_tile import sizes

COLUMNS = """kernel @k(in %x: f32[{rows}, {n}], out %y: f32[{n}]) {{
  for %j in 0..{n} lanes 4 {{
    %s = reduce {op} %k in 0..{rows} {{ yield %x[%k, %j] }}
    store %s, %y[%j] }} }}"""


@pytest.mark.parametrize("op", ["max", "add"])
@pytest.mark.parametrize(("n", "chains"), [(4, 4), (8, 2), (16, 1)])
def test_four_results_are_under_way(op: str, n: int, chains: int) -> None:
    """Columns come first, as many vectors as there are, then partial results of each."""
    found = sizes(COLUMNS.format(rows=1000, n=n, op=op))
    assert (found["j"], found["k"]) == (n, chains)


@pytest.mark.parametrize(("rows", "chains"), [(7, 1), (8, 2), (13, 3)])
def test_a_partial_result_combines_four_elements(rows: int, chains: int) -> None:
    assert sizes(COLUMNS.format(rows=rows, n=4, op="max"))["k"] == chains


def test_loops_inside_a_reduction_stay_alone() -> None:
    """Each of its steps has results enough."""
    text = """kernel @k(in %x: f32[100, 4, 9], out %y: f32[4]) {
      parallel %j in 0..4 lanes 4 {
        %s = reduce max %k in 0..100 { %t = reduce add %m in 0..3 { yield %x[%k, %j, %m] }  yield %t }
        store %s, %y[%j] } }"""
    assert sizes(text)["k"] == 1
