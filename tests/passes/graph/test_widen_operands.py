"""widen-operands: operands of contractions in the dtype of their sums."""

from __future__ import annotations

from compiler.target import MatrixShape
from compiler.testing.checks import check_pass


def test_a_product_of_narrow_operands() -> None:
    check_pass(
        "widen-operands",
        before="graph(%x: f16[2, 3], %w: f16[3, 4]) { %y = matmul %x, %w  return %y }",
        after="""graph(%x: f16[2, 3], %w: f16[3, 4]) {
          %a = cast %x {dtype=f32}  %b = cast %w {dtype=f32}  %s = matmul %a, %b {dtype=f32}  %y = cast %s {dtype=f16}
          return %y }""",
        remark="f16 operands computed in f32",
    )


def test_constants_stay_narrow() -> None:
    head = "graph(%x: bf16[1, 2, 4]) { %w = constant bf16[1, 2, 3] [[[1, 2, 3], [4, 5, 6]]] "
    check_pass(
        "widen-operands",
        before=f"{head} %y = conv %x, %w {{stride=[1], dilation=[1]}}  return %y }}",
        after=f"""{head} %a = cast %x {{dtype=f32}}  %s = conv %a, %w {{stride=[1], dilation=[1], dtype=f32}}
          %y = cast %s {{dtype=bf16}}  return %y }}""",
    )


def test_a_sum_that_is_wide_already() -> None:
    check_pass(
        "widen-operands",
        before="graph(%x: f16[2, 3], %w: f16[3, 4]) { %y = matmul %x, %w {dtype=f32}  return %y }",
        after="""graph(%x: f16[2, 3], %w: f16[3, 4]) {
          %a = cast %x {dtype=f32}  %b = cast %w {dtype=f32}  %y = matmul %a, %b {dtype=f32}  return %y }""",
    )


def test_dtypes_that_the_target_multiplies() -> None:
    text = "graph(%x: bf16[2, 3], %w: bf16[3, 4]) { %y = matmul %x, %w  return %y }"
    check_pass("widen-operands", unchanged=text, matrix_shapes=(MatrixShape(1, 16, 2, "bf16", "bf16", "f32"),))


PAIRS = (MatrixShape(1, 8, 2, "i16", "i16", "i32"),)


def test_bytes_that_the_target_multiplies_as_i16() -> None:
    check_pass(
        "widen-operands",
        before="graph(%x: u8[2, 4], %w: i8[4, 3]) { %y = matmul %x, %w {dtype=i32}  return %y }",
        after="""graph(%x: u8[2, 4], %w: i8[4, 3]) {
          %a = cast %x {dtype=i16}  %b = cast %w {dtype=i16}  %y = matmul %a, %b {dtype=i32}  return %y }""",
        remark="u8 operands computed in i16",
        matrix_shapes=PAIRS,
    )


def test_bytes_that_the_target_multiplies_stay() -> None:
    text = "graph(%x: u8[2, 4], %w: i8[4, 3]) { %y = matmul %x, %w {dtype=i32}  return %y }"
    check_pass("widen-operands", unchanged=text, matrix_shapes=(*PAIRS, MatrixShape(1, 8, 4, "u8", "i8", "i32")))


def test_values_are_converted_before_they_are_arranged() -> None:
    attrs = "{stride=[1], dilation=[1], dtype=i32}"
    weight = "%w = constant i8[1, 4, 1] [[[1], [2], [3], [4]]]"
    check_pass(
        "widen-operands",
        before=f"""graph(%x: u8[1, 3, 4]) {{ {weight}
          %t = permute %x {{dims=[0, 2, 1]}}  %p = pad %t {{before=[0, 0, 1], after=[0, 0, 1], value=7}}
          %y = conv %p, %w {attrs}  return %y }}""",
        after=f"""graph(%x: u8[1, 3, 4]) {{ {weight}
          %a = cast %x {{dtype=i16}}
          %t = permute %a {{dims=[0, 2, 1]}}  %p = pad %t {{before=[0, 0, 1], after=[0, 0, 1], value=7}}
          %y = conv %p, %w {attrs}  return %y }}""",
        matrix_shapes=PAIRS,
    )


def test_wide_and_integer_operands() -> None:
    for dtype in ("f32", "f64", "i8", "i32"):
        text = f"graph(%x: {dtype}[2, 3], %w: {dtype}[3, 4]) {{ %y = matmul %x, %w  return %y }}"
        check_pass("widen-operands", unchanged=text)
