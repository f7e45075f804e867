"""pad-reductions: channels in whole groups of a dot product."""

from __future__ import annotations

import pytest

from compiler.target import MatrixShape
from compiler.testing.checks import check_pass

SHAPES = (MatrixShape(1, 16, 2, "bf16", "bf16", "f32"), MatrixShape(1, 16, 4, "u8", "i8", "i32"))


def test_three_channels_of_bytes_become_four() -> None:
    def conv(weights: str, image: str) -> str:
        return f"""graph(%x: u8[1, 3, 5]) {{ %w = constant i8{weights}  {image}
          %y = conv %a, %w {{stride=[1], dilation=[1], dtype=i32}}  return %y }}"""

    check_pass(
        "pad-reductions",
        before=conv("[1, 3, 2] [[[1, 2], [3, 4], [5, 6]]]", "%a = pad %x {before=[0, 0, 1], after=[0, 0, 2], value=7}"),
        after=conv(
            "[1, 4, 2] [[[1, 2], [3, 4], [5, 6], [0, 0]]]", "%a = pad %x {before=[0, 0, 1], after=[0, 1, 2], value=7}"
        ),
        remark="3 channels padded to 4",
        matrix_shapes=SHAPES,
    )


def test_an_odd_row_of_a_matrix() -> None:
    check_pass(
        "pad-reductions",
        before="graph(%x: bf16[2, 3]) { %w = constant bf16[3, 1] [[1], [2], [3]]  %y = matmul %x, %w  return %y }",
        after="""graph(%x: bf16[2, 3]) { %w = constant bf16[4, 1] [[1], [2], [3], [0]]
          %a = pad %x {before=[0, 0], after=[0, 1]}  %y = matmul %a, %w  return %y }""",
        matrix_shapes=SHAPES,
    )


WEIGHTS = "[2, 1, 3, 2] [[[[1, 2], [3, 4], [5, 6]]], [[[7, 8], [9, 1], [2, 3]]]]"
WEIGHTS_AND_ROW = "[2, 1, 4, 2] [[[[1, 2], [3, 4], [5, 6], [0, 0]]], [[[7, 8], [9, 1], [2, 3], [0, 0]]]]"


def depthwise(
    weights: str,
    after: int,
    dtype: str = "u8",
    pad: str = "pad %x {before=[0, 0, 1, 0], after=[0, 0, AFTER, 0], value=7}",
) -> str:
    w, total = ("i8", "i32") if dtype == "u8" else (dtype, "f32")
    return f"""graph(%x: {dtype}[1, 2, 9, 5]) {{ %w = constant {w}{weights}  %a = {pad.replace("AFTER", str(after))}
      %y = conv %a, %w {{stride=[2, 1], dilation=[1, 1], groups=2, dtype={total}}}  return %y }}"""


def test_three_rows_of_windows_become_four() -> None:
    check_pass(
        "pad-reductions",
        before=depthwise(WEIGHTS, 2),
        after=depthwise(WEIGHTS_AND_ROW, 3),
        remark="3 rows of windows padded to 4",
        matrix_shapes=SHAPES,
    )


def test_rows_of_windows_stay() -> None:
    """Infinite floats times zero are NaN, an image without padding would be copied, and two rows would become twice as many."""
    for text in (
        depthwise(WEIGHTS, 2, "bf16"),
        depthwise(WEIGHTS, 2, pad="abs %x"),
        depthwise("[2, 1, 2, 2] [[[[1, 2], [3, 4]]], [[[7, 8], [9, 1]]]]", 2),
        depthwise("[2, 1, 3, 1] [[[[1], [3], [5]]], [[[7], [9], [2]]]]", 2),
    ):
        check_pass("pad-reductions", unchanged=text, matrix_shapes=SHAPES)


@pytest.mark.parametrize(
    "text",
    [
        "graph(%x: bf16[2, 4]) { %w = constant bf16[4, 1] [[1], [2], [3], [4]]  %y = matmul %x, %w  return %y }",  # whole
        "graph(%x: f32[2, 3]) { %w = constant f32[3, 1] [[1], [2], [3]]  %y = matmul %x, %w  return %y }",  # no dot of f32
        "graph(%x: bf16[2, 3], %w: bf16[3, 1]) { %y = matmul %x, %w  return %y }",  # an infinite %x times padding is NaN
        """graph(%x: bf16[1, 3, 5]) { %w = constant bf16[3, 1, 1] [[[1]], [[2]], [[3]]]
          %y = conv %x, %w {stride=[1], dilation=[1], groups=3}  return %y }""",
    ],
)
def test_other_contractions_stay(text: str) -> None:
    check_pass("pad-reductions", unchanged=text, matrix_shapes=SHAPES)


ARGUMENTS = "graph(%x: bf16[{m}, 3], %w: bf16[3, {n}]) {{ {pads} %y = matmul {operands} return %y }}"
PADS = "%a = pad %x {before=[0, 0], after=[0, 1]}  %b = pad %w {before=[0, 0], after=[1, 0]} "


def test_arguments_are_copied_if_their_elements_are_multiplied_often() -> None:
    check_pass(
        "pad-reductions",
        before=ARGUMENTS.format(m=16, n=20, pads="", operands="%x, %w"),
        after=ARGUMENTS.format(m=16, n=20, pads=PADS, operands="%a, %b"),
        remark="3 channels padded to 4",
        matrix_shapes=SHAPES,
    )


@pytest.mark.parametrize(("m", "n"), [(2, 20), (20, 2)])
def test_arguments_are_not_copied_for_few_products(m: int, n: int) -> None:
    unchanged = ARGUMENTS.format(m=m, n=n, pads="", operands="%x, %w")
    check_pass(
        "pad-reductions",
        before=unchanged,
        after=unchanged,
        remark="too few products",
        matrix_shapes=SHAPES,
    )
