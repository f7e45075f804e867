"""Estimated times of scheduled kernels: what cache lines cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.analysis.accesses import Accesses
from compiler.codegen.backend import target_by_name
from compiler.cost.cache_traffic import CacheTraffic
from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.machine import Machine
from compiler.cost.tile_strides import TileStrides
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Kernel


def column_sums(row: int, reads: int = 48) -> Kernel:
    """Sum `reads` rows of `row` floats, 128 columns of them."""
    return parse_kernel(f"""
kernel @k(in %x: f32[{reads}, {row}], out %y: f32[128]) {{
  for %i in 0..128 tile 128 lanes 16 {{
    %acc = reduce add %r in 0..{reads} {{
      yield %x[%r, %i]
    }}
    store %acc, %y[%i]
  }}
}}""")


@pytest.mark.parametrize(("row", "share"), [(128, 0.0), (136, 1 / 2), (132, 3 / 4), (129, 15 / 16)])
def test_rows_that_are_no_multiple_of_a_cache_line_shift_its_vectors(row: int, share: float) -> None:
    accesses = Accesses(column_sums(row))
    load = next(a for a in accesses.all if a.buffer == "x")
    assert TileStrides(accesses).crossing_share(load, "i", 64) == share
    assert TileStrides(accesses).crossing_share(load, "i", 4) == 0


def test_vectors_in_two_cache_lines_take_two_loads() -> None:
    machine = target_by_name("x86-64-v4").machine or Machine()
    aligned, shifted = (predicted_seconds(column_sums(row), machine) for row in (128, 129))
    assert 1.5 < shifted / aligned < 2


def test_gaps_shorter_than_a_cache_line_leave_none_out() -> None:
    machine = target_by_name("x86-64-v4").machine or Machine()
    for row, lines in ((128, 48 * 8), (129, 48 * 8 + 2), (143, 48 * 9 - 1), (144, 48 * 8)):
        accesses = Accesses(column_sums(row))
        assert CacheTraffic(accesses, machine).footprints["x"].touched == pytest.approx(lines, abs=4)


def gathered(rows: int) -> Kernel:
    """Read `rows` rows of 64 floats that indices choose from 1000."""
    return parse_kernel(f"""
kernel @k(in %t: f32[1000, 64], in %i: i64[{rows}], out %y: f32[{rows}, 64]) {{
  for %r in 0..{rows} {{
    %row = %i[%r]
    for %c in 0..64 tile 64 lanes 16 {{
      store %t[%row, %c], %y[%r, %c]
    }}
  }}
}}""")


def test_a_loop_over_blocks_walks_over_what_its_inner_loops_start_at() -> None:
    """Rows in blocks are as many lines as rows in one loop, wherever the inner loop begins."""

    def lines(sums: str) -> float:
        kernel = parse_kernel(f"""
kernel @k(in %x: f32[4096, 64], out %y: f32[64]) {{
  parallel %i in 0..64 tile 64 lanes 16 {{
    {sums}
    store %s, %y[%i]
  }}
}}""")
        accesses = Accesses(kernel)
        return CacheTraffic(accesses, Machine()).footprints["x"].touched

    whole = lines("%s = reduce add %r in 0..4096 { yield %x[%r, %i] }")
    inner = "%t = reduce add %r in 64*%b..64*%b + 64 { yield %x[%r, %i] }"
    assert whole == 4096 * 4
    assert lines(f"%s = reduce add %b in 0..64 {{ {inner} yield %t }}") == whole


def test_rows_that_indices_choose_are_lines_of_their_own() -> None:
    machine = target_by_name("x86-64-v4").machine or Machine()
    for rows, lines in ((1, 4), (10, 40), (500, 2000), (2000, 4000)):
        assert CacheTraffic(Accesses(gathered(rows)), machine).footprints["t"].touched == lines


@pytest.mark.parametrize(("row", "share"), [(128, 0.0), (256, 1.0)])
def test_runs_shorter_than_a_page_are_scattered(row: int, share: float) -> None:
    """Rows of 128 floats, each behind the other or with a gap between them."""
    machine = replace(Machine(), scattered_line_cycles=30.0)
    traffic = CacheTraffic(Accesses(column_sums(row)), machine)
    assert traffic.scattered_shares["x"] == share
    far = traffic.cycles({"x": [(1.0, 1e12)]}) - traffic.cycles({"x": [(1.0, machine.l3 / 2)]})
    each = machine.scattered_line_cycles if share else machine.memory_line_cycles
    assert far == pytest.approx(48 * 8 * (each - machine.l3_line_cycles))


def panels(rows: int, row: int) -> Kernel:
    """Sum columns, 16 at a time, over `rows` rows of `row` floats."""
    return parse_kernel(f"""
kernel @k(in %x: f32[{rows}, {row}], out %y: f32[{row}]) {{
  for %i in 0..{row} tile 16 lanes 16 {{
    %acc = reduce add %r in 0..{rows} {{
      yield %x[%r, %i]
    }}
    store %acc, %y[%i]
  }}
}}""")


@pytest.mark.parametrize(
    ("rows", "row", "walks"),
    [
        (2000, 1040, 0),  # all pages have translations
        (8000, 1040, 65 * 8000),  # each panel touches as many pages again
        (16000, 32, 0),  # the same bytes of 500 pages
    ],
)
def test_pages_beyond_the_tlb_are_translated_again(rows: int, row: int, walks: int) -> None:
    machine = Machine()
    cycles = CacheTraffic(Accesses(panels(rows, row)), machine).translation_cycles
    assert cycles == pytest.approx(walks * machine.page_walk_cycles, rel=0.02)


def test_rates_of_streams_include_their_page_walks() -> None:
    stream = parse_kernel("""
kernel @k(in %x: f32[50000000], out %y: f32[50000000]) {
  for %i in 0..50000000 tile 16 lanes 16 {
    store %x[%i], %y[%i]
  }
}""")
    assert CacheTraffic(Accesses(stream), Machine()).translation_cycles == 0
