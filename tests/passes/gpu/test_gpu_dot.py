"""gpu-dot: the blocks of contractions."""

from __future__ import annotations

import pytest

from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Reduce, stmt_ranges, walk
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass

MATMUL = """kernel @matmul(in %x: f32[10, 7], in %w: f32[9, 7], out %y: f32[10, 9])WARPS {
  parallel %i in 0..10ROWS {
    parallel %j in 0..9COLUMNS {
      %sum = reduce add %k in 0..7DEPTH { yield %x[%i, %k] * %w[%j, %k] }
      store %sum, %y[%i, %j]
    }
  }
}"""


def tiled(text: str, rows: int, columns: int, depth: int, warps: int = 0) -> str:
    for place, tile in (("ROWS", rows), ("COLUMNS", columns), ("DEPTH", depth)):
        text = text.replace(place, f" tile {tile}" if tile else "")
    return text.replace("WARPS", f" warps {warps}" if warps else "")


def sized(rows: int, columns: int, depth: int) -> str:
    """The same kernel on larger matrices."""
    return MATMUL.replace("10", str(rows)).replace("9", str(columns)).replace("7", str(depth))


def blocks(text: str, options: str = "") -> tuple[int, int, int]:
    """The tiles that the pass chooses for rows, columns and depth."""
    kernel = run_pipeline(parse_kernel(text), f"gpu-dot{options}")
    tiles = {r.var: r.tile for s in walk(kernel.body) for r in stmt_ranges(s)}
    return tiles["i"], tiles["j"], tiles["k"]


def test_blocks_are_at_least_what_matrix_units_take() -> None:
    check_pass(
        "gpu-dot",
        before=tiled(MATMUL, 0, 0, 0),
        after=tiled(MATMUL, 16, 16, 16, warps=8),
        remark="%sum: blocks of 16 x 16 x 16, 8 warps, 1 stages: ",
    )


def test_the_cost_model_chooses_blocks_warps_and_stages() -> None:
    text = (
        tiled(sized(4096, 4096, 1024), 0, 0, 0).replace("in %x: f32", "in %x: f16").replace("in %w: f32", "in %w: f16")
    )
    text = text.replace("%x[%i, %k] * %w[%j, %k]", "cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k])")
    kernel = run_pipeline(parse_kernel(text), "gpu-dot")
    (depth,) = (r for s in walk(kernel.body) for r in stmt_ranges(s) if r.var == "k")
    assert min(blocks(text)) >= 64
    assert kernel.warps >= 4
    assert depth.stages > 1


def test_options_and_tiles_that_exist_are_kept() -> None:
    assert blocks(tiled(sized(60, 500, 20), 0, 0, 0), "{rows=32, columns=128, depth=16}") == (32, 128, 16)
    assert blocks(tiled(sized(60, 500, 20), 0, 64, 0))[1] == 64


def test_the_loop_that_loads_are_pipelined_along_is_innermost() -> None:
    text = """kernel @k(in %x: f16[64, 128, 4], in %w: f16[64, 128, 4], out %y: f32[64, 64]) {
      parallel %i in 0..64 { parallel %j in 0..64 {
        %s = reduce add %k in 0..128, %r in 0..4 { yield cast<f32>(%x[%i, %k, %r]) * cast<f32>(%w[%j, %k, %r]) }
        store %s, %y[%i, %j] } } }"""
    kernel = run_pipeline(parse_kernel(text), "gpu-dot{depth=32, stages=3}")
    (ranges,) = (s.ranges for s in walk(kernel.body) if isinstance(s, Reduce))
    assert [(r.var, r.tile, r.stages) for r in ranges] == [("r", 1, 1), ("k", 32, 3)]


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (MATMUL.replace("f32", "i64"), "no matrix unit multiplies i64"),
        (MATMUL.replace("%w[%j, %k]", "%w[0, %k]"), "no reuse of an operand"),
        (MATMUL.replace("%w[%j, %k]", "%x[%i, %k]"), "no reuse of an operand"),
    ],
)
def test_left_alone(text: str, remark: str) -> None:
    check_pass("gpu-dot", unchanged=tiled(text, 0, 0, 0), remark=remark)
