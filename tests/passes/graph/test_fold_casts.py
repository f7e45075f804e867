"""fold-casts: contractions that widen their operands."""

from __future__ import annotations

import pytest

from compiler.target import MatrixShape
from compiler.testing.checks import check_pass

BYTES = (MatrixShape(1, 16, 4, "u8", "i8", "i32"),)


@pytest.mark.parametrize(("lhs", "rhs"), [("u8", "i8"), ("i8", "u8")])
def test_both_operands_that_the_target_multiplies(lhs: str, rhs: str) -> None:
    head = f"graph(%x: {lhs}[2, 3], %w: {rhs}[4, 3]) {{"
    check_pass(
        "fold-casts",
        before=f"""{head} %a = cast %x {{dtype=i32}}  %b = cast %w {{dtype=i32}}  %t = permute %b {{dims=[1, 0]}}
          %y = matmul %a, %t  return %y }}""",
        after=f"{head} %t = permute %w {{dims=[1, 0]}}  %y = matmul %x, %t {{dtype=i32}}  return %y }}",
        remark=f"reads {lhs} and {rhs}",
        matrix_shapes=BYTES,
    )


def test_operands_that_the_target_multiplies_widened() -> None:
    check_pass(
        "fold-casts",
        before="""graph(%x: i8[2, 3], %w: u8[3, 4]) {
          %a = cast %x {dtype=i32}  %b = cast %w {dtype=i32}  %y = matmul %a, %b  return %y }""",
        after="graph(%x: i8[2, 3], %w: u8[3, 4]) { %y = matmul %x, %w {dtype=i32}  return %y }",
        matrix_shapes=(MatrixShape(1, 8, 2, "i16", "i16", "i32"),),
    )


def test_a_constant_alone() -> None:
    head = "graph(%x: f32[2, 2]) { %w = constant i8[2, 2] [[1, -2], [3, 127]] "
    check_pass(
        "fold-casts",
        before=f"{head} %b = cast %w {{dtype=f32}}  %y = matmul %x, %b  return %y }}",
        after=f"{head} %y = matmul %x, %w {{dtype=f32}}  return %y }}",
        remark="reads f32 and i8",
    )


def test_a_convolution_keeps_its_attributes() -> None:
    head = "graph(%x: u8[1, 4, 5], %w: i8[2, 4, 3]) {"
    attrs = "stride=[2], dilation=[1], before=[1], after=[1]"
    check_pass(
        "fold-casts",
        before=f"""{head} %a = cast %x {{dtype=i32}}  %b = cast %w {{dtype=i32}}
          %y = conv %a, %b {{{attrs}}}  return %y }}""",
        after=f"{head} %y = conv %x, %w {{{attrs}, dtype=i32}}  return %y }}",
        matrix_shapes=BYTES,
    )


@pytest.mark.parametrize(
    "casts",
    [
        "%a = cast %x {dtype=i32}  %b = cast %w {dtype=i32}",  # i8 by i8
        "%a = cast %x {dtype=f32}  %b = cast %w {dtype=f32}",  # in another dtype
    ],
)
def test_operands_that_the_target_does_not_multiply(casts: str) -> None:
    check_pass(
        "fold-casts",
        unchanged=f"graph(%x: i8[2, 3], %w: i8[3, 4]) {{ {casts} %y = matmul %a, %b  return %y }}",
        matrix_shapes=BYTES,
    )


def test_a_cast_that_loses_values_stays() -> None:
    check_pass(
        "fold-casts",
        unchanged="""graph(%x: f16[2, 2]) { %w = constant i32[2, 2] [[1, 2], [3, 4097]]
          %b = cast %w {dtype=f16}  %y = matmul %x, %b  return %y }""",
    )
