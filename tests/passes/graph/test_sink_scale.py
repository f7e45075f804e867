"""sink-scale: sums are scaled, not narrow weights."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def test_a_scale_for_each_column() -> None:
    check_pass(
        "sink-scale",
        before="""graph(%x: f32[4, 2]) {
          %q = constant i8[3, 2] [[1, -2], [3, 4], [5, 6]]  %s = constant f32[3, 1] [[0.5], [2], [3]]
          %f = cast %q {dtype=f32}  %z = sub %f, 7.0  %d = mul %z, %s  %w = permute %d {dims=[1, 0]}
          %y = matmul %x, %w
          return %y }""",
        after="""graph(%x: f32[4, 2]) {
          %q = constant i8[3, 2] [[1, -2], [3, 4], [5, 6]]  %p = permute %q {dims=[1, 0]}
          %f = cast %p {dtype=f32}  %c = constant i32[] 7  %cf = cast %c {dtype=f32}  %w = sub %f, %cf
          %m = matmul %x, %w {dtype=f32}
          %s = constant f32[3, 1] [[0.5], [2], [3]]  %t = reshape %s {shape=[1, 3]}  %y = mul %m, %t
          return %y }""",
        remark="the scale follows the sum",
    )


def test_floats_of_8_bits_in_a_convolution_of_bf16() -> None:
    check_pass(
        "sink-scale",
        before="""graph(%x: bf16[1, 2, 4]) {
          %q = constant f8e4m3fn[3, 2, 1] [[[1], [-2]], [[3], [4]], [[5], [6]]]  %s = constant bf16[] 0.5
          %f = cast %q {dtype=bf16}  %w = mul %f, %s
          %y = conv %x, %w {stride=[1], dilation=[1]}
          return %y }""",
        after="""graph(%x: bf16[1, 2, 4]) {
          %q = constant f8e4m3fn[3, 2, 1] [[[1], [-2]], [[3], [4]], [[5], [6]]]  %f = cast %q {dtype=f32}
          %m = conv %x, %f {stride=[1], dilation=[1], dtype=f32}
          %s = constant bf16[] 0.5  %t = cast %s {dtype=f32}  %p = mul %m, %t  %y = cast %p {dtype=bf16}
          return %y }""",
    )


@pytest.mark.parametrize(
    "weight",
    [
        "%f = cast %q {dtype=f32}  %s = constant f32[2, 1] [[0.5], [2]]  %w = mul %f, %s",
        "%w = cast %q {dtype=f32}",
        "%f = cast %q {dtype=f32}  %s = amax %x {dims=[0, 1]}  %w = mul %f, %s",
        "%f = cast %q {dtype=f64}  %s = constant f64[] 0.1  %d = mul %f, %s  %z = cast %x {dtype=f64}  %k = matmul %z, %d  %w = cast %q {dtype=f32}",
    ],
    ids=["along the sum", "no scale", "not constant", "f64"],
)
def test_what_stays(weight: str) -> None:
    check_pass(
        "sink-scale",
        unchanged=f"""graph(%x: f32[4, 2]) {{
          %q = constant i8[2, 3] [[1, -2, 3], [4, 5, 6]]  {weight}  %y = matmul %x, %w  return %y{", %k" if "%k" in weight else ""} }}""",
    )
