"""gpu-dot: the blocks of contractions."""

from __future__ import annotations

import pytest

from compiler.testing import check_pass

MATMUL = """kernel @matmul(in %x: f32[100, 70], in %w: f32[90, 70], out %y: f32[100, 90]) {
  parallel %i in 0..100ROWS {
    parallel %j in 0..90COLUMNS {
      %sum = reduce add %k in 0..70DEPTH { yield %x[%i, %k] * %w[%j, %k] }
      store %sum, %y[%i, %j]
    }
  }
}"""


def tiled(text: str, rows: int, columns: int, depth: int) -> str:
    for place, tile in (("ROWS", rows), ("COLUMNS", columns), ("DEPTH", depth)):
        text = text.replace(place, f" tile {tile}" if tile else "")
    return text


def test_matmul() -> None:
    check_pass("gpu-dot", before=tiled(MATMUL, 0, 0, 0), after=tiled(MATMUL, 64, 64, 32), remark="%sum: blocks of %k 32, %j 64, %i 64")


def test_options() -> None:
    options = "gpu-dot{rows=32, columns=128, depth=64}"
    check_pass(options, before=tiled(MATMUL, 0, 0, 0), after=tiled(MATMUL, 32, 128, 64))


def test_small_blocks_are_padded_to_what_matrix_units_take() -> None:
    small = MATMUL.replace("100", "5").replace("90", "3").replace("70", "2")
    check_pass("gpu-dot", before=tiled(small, 0, 0, 0), after=tiled(small, 16, 16, 16))


def test_a_wide_row_leaves_room_for_fewer_rows() -> None:
    wide = MATMUL.replace("90", "500")
    check_pass("gpu-dot", before=tiled(wide, 0, 512, 0), after=tiled(wide, 16, 512, 32))


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (MATMUL.replace("f32", "i64"), "no matrix unit multiplies i64"),
        (MATMUL.replace("%w[%j, %k]", "%w[0, %k]"), "a factor is used only once"),
        (MATMUL.replace("%w[%j, %k]", "%x[%i, %k]"), "a factor is used only once"),
    ],
)
def test_left_alone(text: str, remark: str) -> None:
    check_pass("gpu-dot", unchanged=tiled(text, 0, 0, 0), remark=remark)
