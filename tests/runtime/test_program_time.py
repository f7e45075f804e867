"""Predicted times inside programs: what launches find in the caches, and the cycles of lines, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.cost.kernel_time import KernelEstimate
from compiler.cost.machine import AVX512, CACHE_LINE_BYTES
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.runtime.program_time import Interval, ReuseStack, program_seconds

FAR = 1e12
"""A reuse distance beyond every cache, in bytes."""

COPY = """kernel @copy(in %x: f32[262144], out %y: f32[262144]) {
  for %i in 0..262144 tile 64 lanes 16 { store %x[%i], %y[%i] }
}"""
LINES = 262144 * 4 / CACHE_LINE_BYTES

NO_INSTRUCTIONS = replace(AVX512, issue_width=10**6, loads_per_cycle=10**6, stores_per_cycle=10**6, loop_overhead=1e-9)
"""A core that only waits for lines."""


def estimate(text: str, shared_memory: dict[str, str] | None = None) -> KernelEstimate:
    return KernelEstimate(parse_kernel(text), NO_INSTRUCTIONS, shared_memory)


def lines(text: str, shared_memory: dict[str, str] | None = None) -> dict[str, float]:
    """Return the lines of each buffer that a kernel touches."""
    return {n: f.touched for n, f in estimate(text, shared_memory).traffic.footprints.items()}


def test_the_distance_is_what_was_touched_since() -> None:
    stack = ReuseStack()
    for name, size in (("a", 100), ("b", 50), ("c", 30)):
        stack.touch(Interval(name, 0, size))
    assert stack.distances(Interval("a", 0, 100)) == [(1.0, 80.0)]
    assert stack.distances(Interval("c", 0, 30)) == [(1.0, 0.0)]
    assert stack.distances(Interval("d", 0, 10)) == [(1.0, 180.0)]  # never touched: before all others
    stack.touch(Interval("a", 0, 100))
    assert stack.distances(Interval("b", 0, 50)) == [(1.0, 130.0)]


def test_parts_of_an_interval_have_distances_of_their_own() -> None:
    stack = ReuseStack()
    stack.touch(Interval("a", 0, 100))
    stack.touch(Interval("b", 0, 50))
    stack.touch(Interval("a", 0, 25))
    assert stack.distances(Interval("a", 0, 100)) == [(0.25, 0.0), (0.75, 75.0)]


def test_lines_between_those_that_were_touched_keep_their_distance() -> None:
    stack = ReuseStack()
    stack.touch(Interval("a", 0, 100))
    stack.touch(Interval("b", 0, 50))
    stack.touch(Interval("a", 0, 100, density=0.25))
    assert stack.distances(Interval("a", 0, 100)) == [(0.25, 0.0), (0.75, 75.0)]


@pytest.mark.parametrize(
    ("distance", "line_cycles"),
    [
        (AVX512.l2 // 4, AVX512.l2_line_cycles),
        (AVX512.l3 // 4, AVX512.l3_line_cycles),
        (FAR, AVX512.memory_line_cycles),
    ],
)
def test_lines_come_at_the_rate_of_the_level_that_has_them(distance: float, line_cycles: float) -> None:
    """The data are 32 KiB, read and written: each line that is written counts `store_transfers` times."""
    e = estimate(COPY.replace("262144", "8192"))
    cycles = e.traffic.cycles({n: [(1.0, distance)] for n in ("x", "y")})
    assert cycles == pytest.approx(8192 * 4 / CACHE_LINE_BYTES * line_cycles * (1 + AVX512.store_transfers))


def test_no_line_is_fetched_that_the_cache_has() -> None:
    assert estimate(COPY.replace("262144", "1024")).traffic.cycles() == 0


def test_time_grows_with_the_distance() -> None:
    e = estimate(COPY)
    times = [e.seconds({n: [(1.0, d)] for n in ("x", "y")}) for d in (0.0, 1e6, 4e6, 2e7, 4e7, FAR)]
    assert times == sorted(times)
    assert times[-1] > 2 * times[0]


def test_accesses_a_row_apart_touch_rows_of_their_own() -> None:
    rows = "kernel @k(in %x: f32[4, 1024], out %y: f32[1024]) { for %i in 0..1024 tile 16 lanes 16 { store VALUE, %y[%i] } }"
    assert lines(rows.replace("VALUE", "%x[0, %i]"))["x"] == 64
    assert lines(rows.replace("VALUE", "%x[0, %i] + %x[2, %i] + %x[3, %i]"))["x"] == 3 * 64
    assert lines(rows.replace("VALUE", "%x[1, %i] + %x[1, %i] * 2.0"))["x"] == 64


def test_neighbours_touch_the_same_lines() -> None:
    row = "kernel @k(in %x: f32[1026], out %y: f32[1024]) { for %i in 0..1024 tile 16 lanes 16 { store %x[%i] + %x[%i + 2], %y[%i] } }"
    assert 64 <= lines(row)["x"] <= 66


def test_an_update_in_place_touches_its_lines_once() -> None:
    assert lines(COPY) == {"x": LINES, "y": LINES}
    assert lines(COPY, {"y": "x"}) == {"x": LINES}


def test_code_waits_for_every_line() -> None:
    e = estimate(COPY)
    assert e.code_cycles([(1.0, 0.0)]) == 0
    assert e.code_cycles([(1.0, FAR)]) == pytest.approx(e.code_bytes / CACHE_LINE_BYTES * AVX512.memory_latency)
    assert e.code_cycles([(0.5, FAR), (0.5, 0.0)]) == pytest.approx(e.code_cycles([(1.0, FAR)]) / 2)


def chain(between: str) -> str:
    """Return a program of two copies, with the launch `between` them."""
    copy = COPY.replace("262144", "65536")
    large = COPY.replace("262144", "33554432").replace("@copy", "@large")
    return f"""program {{
      input %x: f32[65536]  input %big: f32[33554432]  buffer %a: f32[65536]
      output %y: f32[65536]  output %z: f32[33554432]
      {copy}
      {large}
      launch @copy(%x, %a)
      {between}
      launch @copy(%a, %y)
    }}"""


def test_a_launch_finds_what_the_launch_before_left() -> None:
    """Behind a copy of 128 MiB, what the first copy wrote has left the caches."""
    evicted = program_seconds(parse_program(chain("launch @large(%big, %z)")), AVX512)
    first, second = "launch @copy(%x, %a)", "launch @large(%big, %z)"
    kept = program_seconds(parse_program(chain("").replace(first, f"{second}\n{first}")), AVX512)
    assert evicted[-1] > 1.2 * kept[-1]
