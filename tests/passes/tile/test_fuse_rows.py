"""fuse-rows: which parts of rows share a loop."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def kernel(body: str, result: str = "f32[9, 3]") -> str:
    return f"kernel @k(in %x: f32[9, 2], in %z: f32[9], out %y: {result}) {{ {body} }}"


FIRST = "parallel %i in 0..9 { for %j in 0..2 { store %x[%i, %j], %y[%i, %j] } }"
SECOND = "parallel %k in 0..9 { store %z[%k], %y[%k, 2] }"
FUSED = "parallel %i in 0..9 { for %j in 0..2 { store %x[%i, %j], %y[%i, %j] } store %z[%i], %y[%i, 2] }"


def test_parts_of_a_row_share_the_loop_over_rows() -> None:
    check_pass("fuse-rows", before=kernel(FIRST + SECOND), after=kernel(FUSED), remark="parts of rows fused into %i")


def test_a_third_part_joins_the_other_two() -> None:
    third = "parallel %l in 0..9 { store 0.0, %y[%l, 3] }"
    check_pass(
        "fuse-rows",
        before=kernel(FIRST + SECOND + third, "f32[9, 4]"),
        after=kernel(FUSED[:-1] + "store 0.0, %y[%i, 3] }", "f32[9, 4]"),
    )


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("long rows", kernel(FIRST + SECOND, "f32[9, 20000]")),
        ("strips in one part", kernel(FIRST.replace("in 0..9", "in 0..9 tile 8") + SECOND)),
        ("fewer rows in one part", kernel(FIRST.replace("in 0..9", "in 0..8") + SECOND)),
        ("serial loops", kernel(FIRST.replace("parallel", "for") + SECOND.replace("parallel", "for"))),
        ("rows of one part are columns of the other", kernel(FIRST + SECOND.replace("%y[%k, 2]", "%y[2, %k]"), "f32[9, 9]")),
        ("a part that reads what other rows store", kernel(FIRST + SECOND.replace("%z[%k]", "%y[8 - %k, 0]"))),
    ],
)  # fmt: skip
def test_others_stay_apart(why: str, text: str) -> None:
    check_pass("fuse-rows", unchanged=text)
