"""expand-finite-casts: constant floats of 8 bits that are numbers."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

PASS = "expand-finite-casts"


def graph(value: str, dtype: str = "f8e4m3fn", result: str = "f32") -> str:
    return f"""graph(%x: f32[2]) {{
      %w = constant {dtype}[2] {value}  %c = cast %w {{dtype={result}}}  %d = cast %c {{dtype=f32}}  %y = mul %x, %d
      return %y }}"""


@pytest.mark.parametrize(
    ("dtype", "shift", "mask", "scale"),
    [("f8e4m3fn", 20, (0x7F << 20) - (1 << 31), 2.0**120), ("f8e5m2", 21, (0x7F << 21) - (1 << 31), 2.0**112)],
)
def test_fields_are_put_where_f32_has_them(dtype: str, shift: int, mask: int, scale: float) -> None:
    check_pass(
        PASS,
        before=f"""graph(%x: f32[2]) {{
          %w = constant {dtype}[2] [-0.015625, 1.5]  %v = expand %w {{shape=[3, 2]}}  %c = cast %v {{dtype=f32}}  %y = mul %c, %x
          return %y }}""",
        after=f"""graph(%x: f32[2]) {{
          %w = constant {dtype}[2] [-0.015625, 1.5]  %v = expand %w {{shape=[3, 2]}}
          %b = bitcast %v {{dtype=i8}}  %i = cast %b {{dtype=i32}}  %s = shift_left %i, {shift}  %m = and %s, {mask}
          %f = bitcast %m {{dtype=f32}}  %c = mul %f, {scale!r}  %y = mul %c, %x
          return %y }}""",
        remark="the constant has no NaN",
    )


@pytest.mark.parametrize(
    ("value", "dtype", "result"),
    [("[nan, 1.0]", "f8e4m3fn", "f32"), ("[inf, 1.0]", "f8e5m2", "f32"), ("[1.0, 2.0]", "bf16", "f32"), ("[1.0, 2.0]", "f8e4m3fn", "bf16")],
    ids=["NaN", "infinity", "other formats", "other results"],
)  # fmt: skip
def test_what_stays(value: str, dtype: str, result: str) -> None:
    check_pass(PASS, unchanged=graph(value, dtype, result))


def test_arguments_stay() -> None:
    check_pass(PASS, unchanged="graph(%x: f8e4m3fn[2]) { %c = cast %x {dtype=f32}  return %c }")
