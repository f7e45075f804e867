"""sink-expand: what depends on the repeated value alone is computed before it is repeated."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass


def test_rows_are_divided_by_their_norm_once() -> None:
    check_pass(
        "sink-expand",
        before="""graph(%x: f32[3, 4], %y: f32[5, 4]) {
          %r = reshape %x {shape=[3, 1, 4]}  %e = expand %r {shape=[3, 5, 4]}
          %q = mul %e, %e  %s = sum %q {dims=[2], keepdim=true}  %n = sqrt %s  %d = div %e, %n
          %m = mul %d, %y  %z = sum %m {dims=[2]}  return %z }""",
        after="""graph(%x: f32[3, 4], %y: f32[5, 4]) {
          %r = reshape %x {shape=[3, 1, 4]}
          %q = mul %r, %r  %s = sum %q {dims=[2], keepdim=true}  %n = sqrt %s  %d = div %r, %n
          %e = expand %d {shape=[3, 5, 4]}  %m = mul %e, %y  %z = sum %m {dims=[2]}  return %z }""",
        remark="%d is repeated when it is computed",
    )


def test_new_dimensions_are_of_size_one() -> None:
    check_pass(
        "sink-expand",
        before="graph(%x: f32[4]) { %e = expand %x {shape=[3, 4]}  %a = exp %e  %y = sum %a {dims=[1]}  return %y, %e }",
        after="""graph(%x: f32[4]) { %r = reshape %x {shape=[1, 4]}  %a = exp %r  %s = sum %a {dims=[1]}
          %y = expand %s {shape=[3]}  %e = expand %x {shape=[3, 4]}  return %y, %e }""",
    )


def test_a_number_does_not_count_as_an_operand_of_another_shape() -> None:
    check_pass(
        "sink-expand",
        before="graph(%x: f32[3, 1]) { %e = expand %x {shape=[3, 4]}  %y = mul %e, 2.0  return %y }",
        after="graph(%x: f32[3, 1]) { %m = mul %x, 2.0  %y = expand %m {shape=[3, 4]}  return %y }",
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("%e = expand %x {shape=[3, 4]}  %y = sum %e {dims=[1]}  return %y", id="reduced where repeated"),
        pytest.param("%e = expand %x {shape=[3, 4]}  %y = add %e, %z  return %y", id="another operand varies"),
        pytest.param("%t = permute %z {dims=[1, 0]}  %y = exp %t  return %y", id="a view that repeats nothing"),
        pytest.param("%t = reshape %z {shape=[12]}  %y = exp %t  return %y", id="a view of fewer dimensions"),
        pytest.param("%t = slice %z {dim=1, size=2}  %y = exp %t  return %y", id="a view of the first elements"),
        pytest.param("%e = expand %x {shape=[3, 4]}  return %e", id="nothing computed"),
        pytest.param("%y = mul %x, %z  return %y", id="broadcast by the op"),
    ],
)
def test_what_stays(body: str) -> None:
    check_pass("sink-expand", unchanged=f"graph(%x: f32[3, 1], %z: f32[3, 4]) {{ {body} }}")
