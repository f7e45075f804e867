"""remove-clamps: quantization of values that are within its bounds."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

RELU6 = "%p = maximum %x, 0.0  %a = minimum %p, 6.0"


def graph(*lines: str) -> str:
    return f"graph(%x: f32[8, 8]) {{ {'  '.join(lines)}  return %q }}"


def test_both_bounds_are_known() -> None:
    scaled = "%m = mul %a, 42.5  %r = round %m"
    check_pass(
        "remove-clamps",
        before=graph(RELU6, scaled, "%low = maximum %r, 0.0  %high = minimum %low, 255.0  %q = cast %high {dtype=u8}"),
        after=graph(RELU6, scaled, "%q = cast %r {dtype=u8}"),
        remark="2 clamps within bounds",
        special=False,  # a conversion of NaN may give any integer
    )


def test_one_bound_is_known() -> None:
    check_pass(
        "remove-clamps",
        before=graph(
            RELU6, "%m = mul %a, 50.0  %low = maximum %m, 0.0  %high = minimum %low, 255.0  %q = cast %high {dtype=u8}"
        ),
        after=graph(RELU6, "%m = mul %a, 50.0  %high = minimum %m, 255.0  %q = cast %high {dtype=u8}"),
        special=False,
    )


def test_codes_are_within_their_bounds() -> None:
    check_pass(
        "remove-clamps",
        before="""graph(%x: u8[8]) {
          %f = cast %x {dtype=f32}  %s = sub %f, 128.0  %low = maximum %s, -128.0  %high = minimum %low, 127.0
          %q = cast %high {dtype=i8}  return %q }""",
        after="graph(%x: u8[8]) { %f = cast %x {dtype=f32}  %s = sub %f, 128.0  %q = cast %s {dtype=i8}  return %q }",
    )


@pytest.mark.parametrize(
    "lines",
    [
        "%low = maximum %x, 0.0  %high = minimum %low, 255.0  %q = cast %high {dtype=u8}",
        f"{RELU6}  %m = mul %a, -42.0  %low = maximum %m, 0.0  %q = cast %low {{dtype=u8}}",
        f"{RELU6}  %m = add %a, -1.0  %low = maximum %m, 0.0  %q = cast %low {{dtype=u8}}",
        f"{RELU6}  %q = maximum %a, 0.0",
    ],
    ids=["any value", "the order is reversed", "bounds are exceeded", "the sign of zero counts"],
)
def test_what_stays(lines: str) -> None:
    check_pass("remove-clamps", unchanged=graph(lines), special=False)


def test_integers_that_wrap_have_no_bounds() -> None:
    check_pass(
        "remove-clamps",
        unchanged="graph(%x: i64[8]) { %a = add %x, -1  %low = maximum %a, 0  %high = minimum %low, 5  return %high }",
    )
