"""gpu-dot: the blocks of contractions."""

from __future__ import annotations

import pytest

from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import stmt_ranges, walk
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass

MATMUL = """kernel @matmul(in %x: f32[10, 7], in %w: f32[9, 7], out %y: f32[10, 9]) {
  parallel %i in 0..10ROWS {
    parallel %j in 0..9COLUMNS {
      %sum = reduce add %k in 0..7DEPTH { yield %x[%i, %k] * %w[%j, %k] }
      store %sum, %y[%i, %j]
    }
  }
}"""


def tiled(text: str, rows: int, columns: int, depth: int) -> str:
    for place, tile in (("ROWS", rows), ("COLUMNS", columns), ("DEPTH", depth)):
        text = text.replace(place, f" tile {tile}" if tile else "")
    return text


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
        after=tiled(MATMUL, 16, 16, 16),
        remark="%sum: blocks of %k 16, %j 16, %i 16",
    )


def test_blocks_are_powers_of_two_up_to_a_limit() -> None:
    assert blocks(tiled(sized(60, 500, 20), 0, 0, 0)) == (64, 64, 32)
    assert blocks(tiled(sized(60, 500, 20), 0, 0, 0), "{rows=32, columns=128, depth=16}") == (32, 128, 16)


def test_a_wide_row_leaves_room_for_fewer_rows() -> None:
    assert blocks(tiled(sized(60, 500, 20), 0, 512, 0), "{max-shared-bytes=1000000}") == (16, 512, 32)


def test_factors_fit_in_shared_memory() -> None:
    assert blocks(tiled(sized(60, 500, 20), 0, 512, 0)) == (16, 512, 16)
    assert blocks(tiled(sized(60, 500, 500), 0, 0, 512)) == (16, 16, 512)


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
