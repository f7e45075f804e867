"""Mean extents: loops that depend on those around them count as often as they run on average."""

from __future__ import annotations

import pytest

from compiler.cost.kernel_time import predicted_seconds
from compiler.cost.machine import Machine
from compiler.cost.mean_extents import with_mean_extents
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.text.tile_printer import print_kernel

ROWS = """kernel @k(in %x: f32[64, {columns}], out %y: f32[64]) {{
  for %i in 0..64 {{
    %s = reduce add %j in 0..{extent} {{ yield %x[%i, %j] }}
    store %s, %y[%i]
  }}
}}"""


@pytest.mark.parametrize(("extent", "mean"), [("%i + 1", 33), ("min(40, %i + 1)", 33), ("100 - %i", 68), ("17", 17)])
def test_a_loop_has_the_extent_of_the_middle_iteration(extent: str, mean: int) -> None:
    kernel = parse_kernel(ROWS.format(extent=extent, columns=128))
    assert with_mean_extents(kernel) == parse_kernel(ROWS.format(extent=mean, columns=128))


def test_the_middle_of_tiles_inside_a_block_counts_from_its_beginning() -> None:
    kernel = parse_kernel("""kernel @k(out %y: f32[256, 256]) {
      for %b in 0..8 { for %i in %b*32..%b*32 + min(32, 250 - %b*32) tile 4 { for %j in 0..%i + 4 { store 0.0, %y[%i, %j] } } } }""")
    text = print_kernel(with_mean_extents(kernel))
    assert "for %i in %b*32..%b*32 + 32 tile 4 {" in text
    assert "for %j in 0..148 {" in text  # the fifth block begins at 128, the middle of its tiles at 144


def test_what_is_left_of_full_blocks_is_no_loop() -> None:
    kernel = parse_kernel("""kernel @k(out %y: f32[250]) {
      for %b in 0..4 {
        for %i in %b*64..%b*64 + (min(64, 250 - %b*64)//16)*16 tile 16 lanes 16 { store 0.0, %y[%i] }
        for %i in %b*64 + (min(64, 250 - %b*64)//16)*16..%b*64 + min(64, 250 - %b*64) { store 0.0, %y[%i] }
      } }""")
    assert print_kernel(with_mean_extents(kernel)).count("for %i") == 1


def test_a_triangle_takes_half_the_time_of_its_square() -> None:
    machine, extents = Machine(), ("4096", "64*%i + 1", "min(4096, 64*%i + 1)")
    square, *triangles = (
        predicted_seconds(parse_kernel(ROWS.format(extent=e, columns=4096)), machine) for e in extents
    )
    assert all(0.4 < t / square < 0.7 for t in triangles)
