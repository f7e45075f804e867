"""Prefetch: rows read several times are fetched one ahead."""

from __future__ import annotations

from compiler.ir.tile_parser import parse_kernel
from compiler.ir.tile_printer import print_kernel
from compiler.passes.manager import run_pipeline

ROWS = """kernel @centre(in %x: f32[{rows}, 1024], out %y: f32[{rows}, 1024]) {{
  parallel %i in 0..{rows} {{
    %s = reduce add %r in 0..1024 tile 64 lanes 16 {{ yield %x[%i, %r] }}
    for %j in 0..1024 tile 64 lanes 16 {{ store %x[%i, %j] - %s, %y[%i, %j] }}
  }}
}}"""


def test_the_second_loop_asks_for_the_next_row() -> None:
    text = print_kernel(run_pipeline(parse_kernel(ROWS.format(rows=4096)), "prefetch"))
    assert "for %j in 0..1024 tile 64 lanes 16 {\n      prefetch %x[%i + 1, %j]\n" in text
    assert print_kernel(parse_kernel(text)) == text


def test_rows_that_stay_in_cache_are_left_alone() -> None:
    kernel = parse_kernel(ROWS.format(rows=16))
    assert run_pipeline(kernel, "prefetch") is kernel


PANELS = """kernel @linear(in %x: f32[{rows}, 1024], const %w: f32[{columns}, 1024]{{0/48, 1, 0%48}}, out %y: f32[{rows}, {columns}]) {{
  parallel %j in 0..{columns} tile 48 lanes 16 {{
    for %i in 0..{rows} tile 8 {{
      %s = reduce add %k in 0..1024 {{ yield %x[%i, %k] * %w[%j, %k] }}
      store %s, %y[%i, %j]
    }}
  }}
}}"""


def test_blocks_of_rows_fetch_the_next_panel_of_weights() -> None:
    text = print_kernel(run_pipeline(parse_kernel(PANELS.format(rows=32, columns=960)), "prefetch"))
    assert "prefetch %w[%j + 48, (%i//8)*256 + %k//4]" in text
    assert print_kernel(parse_kernel(text)) == text


def test_weights_that_stay_in_cache_are_left_alone() -> None:
    kernel = parse_kernel(PANELS.format(rows=32, columns=96))
    assert run_pipeline(kernel, "prefetch") is kernel


def test_many_blocks_of_rows_need_no_fetching() -> None:
    kernel = parse_kernel(PANELS.format(rows=40, columns=960))
    assert run_pipeline(kernel, "prefetch") is kernel
