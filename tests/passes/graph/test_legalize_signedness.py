"""legalize-signedness: unsigned and signed bytes as the target multiplies them."""

from __future__ import annotations

import pytest

from compiler.target import MatrixShape
from compiler.testing.checks import check_pass

X86 = (MatrixShape(1, 16, 4, "u8", "i8", "i32"),)
SIGNED = (MatrixShape(16, 16, 16, "i8", "i8", "i32"),)
WEIGHT = "%w = constant i8[2, 3] [[-128, 5, 127], [7, -1, 0]]"


def test_a_signed_activation_becomes_unsigned() -> None:
    check_pass(
        "legalize-signedness",
        before=f"""graph(%x: i8[4, 2]) {{ {WEIGHT}
          %xf = cast %x {{dtype=f32}}  %a = mul %xf, 0.5  %b = cast %w {{dtype=f32}}
          %y = matmul %a, %b
          return %y }}""",
        after=f"""graph(%x: i8[4, 2]) {{
          %xb = bitcast %x {{dtype=u8}}  %u = xor %xb, 128  %uf = cast %u {{dtype=f32}}
          %z = constant i32[] 128  %zf = cast %z {{dtype=f32}}  %s = sub %uf, %zf  %a = mul %s, 0.5
          {WEIGHT}  %b = cast %w {{dtype=f32}}
          %y = matmul %a, %b {{dtype=f32}}
          return %y }}""",
        remark="codes become u8 and i8",
        matrix_shapes=X86,
        special=False,
    )


def test_unsigned_weights_become_signed_with_their_zero_point() -> None:
    check_pass(
        "legalize-signedness",
        before="""graph(%x: u8[4, 2]) {
          %w = constant u8[2, 1] [[0], [200]]
          %a = cast %x {dtype=i32}  %wi = cast %w {dtype=i32}  %b = sub %wi, 128
          %y = matmul %a, %b
          return %y }""",
        after="""graph(%x: u8[4, 2]) {
          %a = cast %x {dtype=i32}
          %w = constant u8[2, 1] [[0], [200]]  %f = xor %w, 128  %s = bitcast %f {dtype=i8}  %b = cast %s {dtype=i32}
          %y = matmul %a, %b {dtype=i32}
          return %y }""",
        matrix_shapes=X86,
    )


def test_a_zero_point_of_the_data_moves_along() -> None:
    check_pass(
        "legalize-signedness",
        before=f"""graph(%x: u8[4, 2], %zx: i32[4, 1]) {{ {WEIGHT}
          %xi = cast %x {{dtype=i32}}  %a = sub %xi, %zx  %b = cast %w {{dtype=i32}}
          %y = matmul %a, %b
          return %y }}""",
        after=f"""graph(%x: u8[4, 2], %zx: i32[4, 1]) {{
          %f = xor %x, 128  %s = bitcast %f {{dtype=i8}}  %si = cast %s {{dtype=i32}}  %z = add %zx, -128  %a = sub %si, %z
          {WEIGHT}  %b = cast %w {{dtype=i32}}
          %y = matmul %a, %b {{dtype=i32}}
          return %y }}""",
        matrix_shapes=SIGNED,
    )


@pytest.mark.parametrize(
    ("x", "shapes"), [("u8", X86), ("i8", SIGNED), ("i8", ())], ids=["unsigned", "signed", "no instruction"]
)
def test_what_is_legal_stays(x: str, shapes: tuple[MatrixShape, ...]) -> None:
    check_pass(
        "legalize-signedness",
        unchanged=f"""graph(%x: {x}[4, 2]) {{ {WEIGHT}
          %a = cast %x {{dtype=i32}}  %b = cast %w {{dtype=i32}}  %y = matmul %a, %b  return %y }}""",
        matrix_shapes=shapes,
    )


def test_weights_on_the_left() -> None:
    check_pass(
        "legalize-signedness",
        unchanged="""graph(%x: u8[3, 4]) {
          %w = constant i8[2, 3] [[-128, 5, 127], [7, -1, 0]]
          %a = cast %w {dtype=i32}  %b = cast %x {dtype=i32}  %y = matmul %a, %b
          return %y }""",
        matrix_shapes=X86,
    )


def test_sums_that_are_bytes_stay() -> None:
    check_pass(
        "legalize-signedness",
        unchanged="graph(%x: u8[4, 2], %w: u8[2, 3]) { %y = matmul %x, %w  return %y }",
        matrix_shapes=X86,
    )


def test_wide_sums_keep_their_dtype() -> None:
    check_pass(
        "legalize-signedness",
        before="""graph(%x: u8[4, 2], %w: u8[2, 3]) {
          %a = cast %x {dtype=i64}  %b = cast %w {dtype=i64}
          %y = matmul %a, %b
          return %y }""",
        after="""graph(%x: u8[4, 2], %w: u8[2, 3]) {
          %a = cast %x {dtype=i64}
          %f = xor %w, 128  %s = bitcast %f {dtype=i8}  %si = cast %s {dtype=i64}
          %z = constant i32[] -128  %zi = cast %z {dtype=i64}  %b = sub %si, %zi
          %y = matmul %a, %b {dtype=i64}
          return %y }""",
        matrix_shapes=X86,
    )
