"""gpu-rows: loops that walk local buffers take them whole."""

from __future__ import annotations

from compiler.testing.checks import check_pass

SOFTMAX = """kernel @softmax(in %x: f32[6, 100], out %y: f32[6, 100]) {
  parallel %i in 0..6 {
    local %row: f32[100]
    %top = reduce max %r in 0..100 { yield %x[%i, %r] }
    for %j in 0..100TILE { store exp(%x[%i, %j] - %top), %row[%j] }
    %sum = reduce add %k in 0..100TILE { yield %row[%k] }
    for %m in 0..100TILE { store %row[%m] / %sum, %y[%i, %m] }
  }
}"""


def test_rows_become_blocks_of_a_power_of_two() -> None:
    check_pass("gpu-rows", before=SOFTMAX.replace("TILE", ""), after=SOFTMAX.replace("TILE", " tile 128"))


def test_short_rows_can_be_multiplied() -> None:
    short = SOFTMAX.replace("100", "5")
    check_pass("gpu-rows", before=short.replace("TILE", ""), after=short.replace("TILE", " tile 16"))


def test_loops_over_parameters_are_left_alone() -> None:
    check_pass("gpu-rows", unchanged="""kernel @copy(in %x: f32[6], out %y: f32[6]) {
      parallel %i in 0..6 { store %x[%i], %y[%i] }
    }""")  # fmt: skip
