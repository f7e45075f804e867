"""constant-indices: indices that no input decides are checked by the compiler."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def lookup(op: str, index: str, attrs: str) -> str:
    return f"graph(%x: f32[4, 2]) {{ %i = {index}  %y = {op} %x, %i {{{attrs}}}  return %y }}"


def test_indices_within_bounds() -> None:
    index = "constant i64[3] [0, 3, 1]"
    check_pass(
        "constant-indices",
        before=lookup("take", index, "dim=0"),
        after=lookup("take", index, "dim=0, in_bounds=true"),
        remark="all indices are within bounds",
    )


def test_negative_indices_count_from_the_start() -> None:
    check_pass(
        "constant-indices",
        before=lookup("index", "constant i64[3] [0, -1, -4]", "dims=[0]"),
        after=lookup("index", "constant i64[3] [0, 3, 0]", "dims=[0], in_bounds=true"),
    )


def test_computed_indices() -> None:
    check_pass(
        "constant-indices",
        before=lookup("gather", "constant i64[1, 2] [[3, 1]]", "dim=0"),
        after=lookup("gather", "constant i64[1, 2] [[3, 1]]", "dim=0, in_bounds=true"),
    )


STAY = {
    "one too high": lookup("take", "constant i64[2] [0, 4]", "dim=0"),
    "negative, where that is an error": lookup("take", "constant i64[2] [0, -1]", "dim=0"),
    "too far from the end": lookup("index", "constant i64[2] [0, -5]", "dims=[0]"),
    "one of two operands is an input": """graph(%x: f32[4, 2], %i: i64[3]) {
      %j = constant i64[3] [0, 1, 1]  %y = index %x, %i, %j {dims=[0, 1]}  return %y }""",
}


@pytest.mark.parametrize("case", STAY)
def test_indices_that_are_still_checked(case: str) -> None:
    check_pass("constant-indices", unchanged=STAY[case])
