"""Fold: what only constants feed is computed, unless that costs more memory than it saves."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def test_a_constant_expression_becomes_its_value() -> None:
    check_pass(
        "fold",
        before="""graph(%x: f32[2]) {
            %c = constant f32[2] [1, 4]
            %d = sqrt %c
            %e = add %d, 1.0
            %y = mul %x, %e
            return %y
        }""",
        after="""graph(%x: f32[2]) {
            %e = constant f32[2] [2, 3]
            %y = mul %x, %e
            return %y
        }""",
    )


def test_bf16_values_are_kept() -> None:
    check_pass(
        "fold",
        before="graph(%x: bf16[2]) { %c = constant bf16[2] [1, 4]  %d = add %c, 0.0078125  %y = mul %x, %d  return %y }",
        after="graph(%x: bf16[2]) { %d = constant bf16[2] [1.0078125, 4]  %y = mul %x, %d  return %y }",
    )


def test_views_and_generated_values_stay() -> None:
    check_pass(
        "fold",
        unchanged="""graph(%x: f32[2, 2]) {
            %c = constant f32[2, 2] [[1, 2], [3, 4]]
            %t = permute %c {dims=[1, 0]}
            %y = add %x, %t
            return %y
        }""",
    )


def test_a_view_under_maths_is_folded_with_it() -> None:
    check_pass(
        "fold",
        before="""graph(%x: f32[2]) {
            %c = constant f32[2, 1] [[1], [2]]
            %t = reshape %c {shape=[2]}
            %n = neg %t
            %y = add %x, %n
            return %y
        }""",
        after="""graph(%x: f32[2]) {
            %n = constant f32[2] [-1, -2]
            %y = add %x, %n
            return %y
        }""",
    )


OUTER_PRODUCT = """graph(%x: f32[4, 4]) {
    %c = constant f32[4, 1] [[1], [2], [3], [4]]
    %d = constant f32[4] [1, 2, 3, 4]
    %p = mul %c, %d
    %y = add %x, %p
    return %y
}"""


def test_results_larger_than_the_limit_and_their_operands_stay() -> None:
    check_pass("fold{max-bytes=63}", unchanged=OUTER_PRODUCT)


def test_results_up_to_the_limit_are_folded() -> None:
    check_pass(
        "fold{max-bytes=64}",
        before=OUTER_PRODUCT,
        after="""graph(%x: f32[4, 4]) {
            %p = constant f32[4, 4] [[1, 2, 3, 4], [2, 4, 6, 8], [3, 6, 9, 12], [4, 8, 12, 16]]
            %y = add %x, %p
            return %y
        }""",
    )


def test_a_part_at_an_open_place_is_not_known() -> None:
    check_pass(
        "fold",
        unchanged="""graph(%x: f32[s0]) {
            %c = constant f32[9] [1, 2, 3, 4, 5, 6, 7, 8, 9]
            %p = slice %c {dim=0, start=s0, size=2}
            %y = exp %p
            return %y, %x
        }""",
    )


@pytest.mark.parametrize("view", ["%v = permute %d {dims=[1, 0]}", "%v = reshape %d {shape=[2, 2]}"])
def test_weights_stay_as_narrow_as_they_are(view: str) -> None:
    check_pass(
        "fold",
        unchanged=f"""graph(%x: f32[3, 2]) {{
          %q = constant i8[2, 2] [[1, 2], [3, 4]]  %f = cast %q {{dtype=f32}}  %s = constant f32[2, 1] [[0.5], [2]]
          %d = mul %f, %s  {view}  %y = matmul %x, %v
          return %y }}""",
    )


def test_what_no_contraction_reads_is_widened() -> None:
    check_pass(
        "fold",
        before="""graph(%x: f32[2, 2]) {
          %q = constant i8[2, 2] [[1, 2], [3, 4]]  %f = cast %q {dtype=f32}  %y = add %x, %f  return %y }""",
        after="""graph(%x: f32[2, 2]) {
          %f = constant f32[2, 2] [[1, 2], [3, 4]]  %y = add %x, %f  return %y }""",
    )


def lookup(positions: str) -> str:
    return f"graph(%x: f32[9, 4]) {{ {positions} %y = take %x, %p {{dim=0}} return %y }}"


def floors(values: str, count: int) -> str:
    return lookup(f"%c = constant f32[{count}] {values} %f = floor %c %p = cast %f {{dtype=i64}}")


@pytest.mark.parametrize(
    ("values", "count", "positions"),
    [
        ("[0.5, 1.5, 2.5]", 3, "%p = iota {size=3}"),
        ("[8, 6, 4, 2]", 4, "%a = iota {size=4} %b = mul %a, -2 %p = add %b, 8"),
        (
            "[1, 1.5, 2, 2.5, 3, 3.5]",
            6,
            """%a = iota {size=3} %b = add %a, 1 %c = reshape %b {shape=[3, 1]} %d = expand %c {shape=[3, 2]}
            %p = reshape %d {shape=[6]}""",
        ),
        ("[0, 0, 1, 1, 2]", 5, "%p = constant i64[5] [0, 0, 1, 1, 2]"),
        ("[0, 2, 3]", 3, "%p = constant i64[3] [0, 2, 3]"),
    ],
)
def test_positions_in_equal_steps_become_functions_of_an_index(values: str, count: int, positions: str) -> None:
    check_pass("fold", before=floors(values, count), after=lookup(positions))


def test_steps_beyond_64_bits_are_no_function_of_indices() -> None:
    check_pass(
        "fold",
        before="""graph() { %x = constant f32[3] [inf, 0.0, inf] %y = cast %x {dtype=i64} return %y }""",
        after="""graph() { %y = constant i64[3] [-9223372036854775808, 0, -9223372036854775808] return %y }""",
    )
