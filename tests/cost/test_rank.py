"""The cost model of scheduled kernels: its terms by hand, and the order it gives to variants against measured times.

`python -m benchmarks rank record` measures again; `python -m benchmarks rank` shows the kernels one by one.
"""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.rank import kendall_tau, rank, recorded_rankings
from benchmarks.rank_corpus import GRAPHS
from compiler.analysis.accesses import Accesses
from compiler.cost.issue import Issue
from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.machine import AVX2, AVX512
from compiler.cost.tile_strides import TileStrides
from compiler.ir.text.tile_parser import parse_kernel

MIN_TAU, MAX_REGRET = 0.7, 0.1
"""Lowest mean rank correlation, and highest mean share of time lost by taking the variant that is predicted to be fastest."""


def seconds(body: str, x: str = "f32[64, 64]", y: str = "f32[64, 64]") -> float:
    return predicted_seconds(
        parse_kernel(f"kernel @k(in %x: {x}, const %w: f32[64, 64], out %y: {y}) {{ {body} }}"), AVX2
    )


def product(rows: str, columns: str, unroll: int = 4) -> str:
    return f"""for %j in 0..64 {columns} {{ for %i in 0..64 {rows} {{
        %s = reduce add %k in 0..64 unroll {unroll} {{ yield %x[%i, %k] * %w[%k, %j] }}  store %s, %y[%i, %j] }} }}"""


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        pytest.param(
            product("tile 4", "tile 16 lanes 8"), product("tile 1", "tile 8 lanes 8"), id="chain of additions"
        ),
        pytest.param(
            product("tile 4", "tile 16 lanes 8"), product("tile 16", "tile 16 lanes 8"), id="spilled accumulators"
        ),
        pytest.param(product("tile 4", "tile 16 lanes 8"), product("tile 8", "tile 8 lanes 8"), id="broadcasts"),
        pytest.param(product("tile 4", "tile 8 lanes 8"), product("tile 4", "tile 8 lanes 8", 1), id="loop ends"),
        pytest.param(
            "for %i in 0..64 { for %j in 0..64 tile 16 lanes 8 { store %x[%i, %j], %y[%i, %j] } }",
            "for %j in 0..64 { for %i in 0..64 tile 16 lanes 8 { store %x[%i, %j], %y[%i, %j] } }",
            id="gathers",
        ),
        pytest.param(
            "for %i in 0..64 tile 8 { for %j in 0..64 tile 8 lanes 8 { store %x[%j, %i], %y[%i, %j] } }",
            "for %i in 0..64 { for %j in 0..64 tile 8 lanes 8 { store %x[%j, %i], %y[%i, %j] } }",
            id="transposed blocks",
        ),
        pytest.param(
            "for %i in 0..64 { for %j in 0..64 tile 8 lanes 8 { store %x[%i, %j], %y[%i, %j] } }",
            "for %i in 0..64 { for %j in 0..60 tile 6 lanes 8 { store %x[%i, %j], %y[%i, %j] } }",
            id="masked vectors",
        ),
    ],
)
def test_order_of_two_schedules(faster: str, slower: str) -> None:
    assert seconds(faster) < seconds(slower) * 0.97


def test_traffic_counts_what_leaves_the_caches() -> None:
    """Adding up columns one after another fetches every line anew, once the lines of a column exceed the caches."""

    def sums(rows: int) -> tuple[float, float]:
        types = f"f32[{rows}, 64]", "f32[64, 64]"
        along = f"for %i in 0..{rows} {{ for %j in 0..64 {{ store %x[%i, %j], %y[0, %j] }} }}"
        across = f"for %j in 0..64 {{ for %i in 0..{rows} {{ store %x[%i, %j], %y[0, %j] }} }}"
        return seconds(along, *types), seconds(across, *types)

    small_along, small_across = sums(64)
    large_along, large_across = sums(65536)
    assert small_across < small_along * 1.1
    assert large_across > large_along * 1.5


def test_strides_inside_and_between_tiles_of_a_packed_layout() -> None:
    table = Accesses(
        parse_kernel("""kernel @k(const %w: f32[8, 64]{1/16, 0, 1%16}, out %y: f32[64]) {
            for %j in 0..64 tile 16 lanes 8 { %s = reduce add %k in 0..8 { yield %w[%k, %j] }  store %s, %y[%j] } }""")
    )
    strides, load = TileStrides(table), table.all[0]
    assert (strides.in_tile(load, "j"), strides.step(load, "j"), strides.step(load, "k")) == (1, 128, 16)


def test_busiest_unit() -> None:
    assert Issue(loads=8).cycles(AVX2) == 4
    assert Issue(loads=8, arithmetic=8).cycles(AVX2) > 4
    assert Issue(stalled=3).cycles(AVX512) == 3


def test_rank_statistics() -> None:
    r = rank("k", [(1.0, 2.0, ""), (2.0, 1.0, "b"), (3.0, 3.0, "c"), (4.0, 3.01, "d")])
    assert (r.pairs, r.predicted_best, r.measured_best) == (5, "default", "b")
    assert r.tau == pytest.approx(3 / 5)
    assert r.strict_tau == pytest.approx(4 / 6)
    assert r.regret == 1.0
    assert kendall_tau([]) == 1.0


def test_corpus() -> None:
    assert len(GRAPHS) >= 40


def test_variants_are_ranked_as_measured() -> None:
    """The model is compared over pairs of variants whose times differ by more than noise; see `benchmarks.rank`."""
    rankings, _ = recorded_rankings()
    assert len(rankings) >= 40
    assert fmean(r.tau for r in rankings) >= MIN_TAU
    assert fmean(r.regret for r in rankings) <= MAX_REGRET
