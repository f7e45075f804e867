"""hoist-quantize: quantization before views, and none of what is quantized already."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

QUANTIZE = """%m = mul %v, 4.0  %r = round %m  %z = add %r, 3.0  %low = maximum %z, 0.0  %high = minimum %low, 255.0
  %q = cast %high {dtype=u8}"""
DEQUANTIZE = "%w = cast %x {dtype=f32}  %s = sub %w, 3.0  %d = mul %s, 0.25"


def test_quantizing_before_views() -> None:
    check_pass(
        "hoist-quantize",
        before=f"""graph(%x: f32[2, 3, 4]) {{
          %p = permute %x {{dims=[2, 0, 1]}}  %v = reshape %p {{shape=[8, 3]}}  {QUANTIZE}  return %q }}""",
        after=f"""graph(%v: f32[2, 3, 4]) {{
          {QUANTIZE}  %p = permute %q {{dims=[2, 0, 1]}}  %y = reshape %p {{shape=[8, 3]}}  return %y }}""",
        remark="quantized earlier",
    )


POOL = "{size=[2], stride=[1], dilation=[1]}"


def test_quantizing_before_pooling() -> None:
    check_pass(
        "hoist-quantize",
        before=f"graph(%x: f32[2, 4]) {{ %v = max_pool %x {POOL}  {QUANTIZE}  return %q }}",
        after=f"graph(%v: f32[2, 4]) {{ {QUANTIZE}  %y = max_pool %q {POOL}  return %y }}",
        special=False,  # NaN, see the pass
    )


@pytest.mark.parametrize("factor", ["%m = mul %v, -4.0", "%m = sub 1.0, %v", "%m = abs %v"])
def test_what_reverses_the_order_is_pooled_first(factor: str) -> None:
    check_pass(
        "hoist-quantize",
        unchanged=f"graph(%x: f32[2, 4]) {{ %v = max_pool %x {POOL}  {factor}  %q = cast %m {{dtype=i8}}  return %q }}",
        special=False,
    )


@pytest.mark.parametrize(
    "chain",
    [
        "%q = cast %v {dtype=i8}",
        "%a = add %v, 1  %l = maximum %a, 0  %h = minimum %l, 127  %q = cast %h {dtype=i8}",
    ],
)
def test_integers_that_may_wrap_are_pooled_first(chain: str) -> None:
    """The largest of 127 and 128 becomes -128."""
    check_pass("hoist-quantize", unchanged=f"graph(%x: i32[2, 4]) {{ %v = max_pool %x {POOL}  {chain}  return %q }}")


@pytest.mark.parametrize(
    "view",
    ["%v = reshape %x {shape=[6]}  %other = exp %v", "%v = slice %x {dim=0, start=0, size=1}  %other = exp %x", "%v = exp %x  %other = exp %x"],
    ids=["read twice", "a part", "no view"],
)  # fmt: skip
def test_what_stays(view: str) -> None:
    check_pass("hoist-quantize", unchanged=f"graph(%x: f32[2, 3]) {{ {view}  {QUANTIZE}  return %q, %other }}")


def test_bools_are_reduced_first() -> None:
    check_pass(
        "hoist-quantize",
        unchanged="graph(%x: bool[2, 3]) { %a = any %x {dims=[1]}  %q = cast %a {dtype=u8}  return %q }",
    )


def test_a_scale_for_each_column_stays() -> None:
    check_pass(
        "hoist-quantize",
        unchanged="""graph(%x: f32[2, 3]) {
          %s = constant f32[6] [1, 2, 3, 4, 5, 6]
          %v = reshape %x {shape=[6]}  %m = mul %v, %s  %q = cast %m {dtype=i8}  return %q }""",
        special=False,
    )


PASSED = {
    "nothing": ("%v = abs %d", "%v = abs %d", False),
    "relu": ("%v = relu %d", "%q = maximum %x, 3", True),
    "max_pool": (
        "%v = max_pool %d {size=[2], stride=[1], dilation=[1]}",
        "%q = max_pool %x {size=[2], stride=[1], dilation=[1]}",
        True,
    ),
    "amin": ("%v = amin %d {dims=[1]}", "%q = amin %x {dims=[1]}", True),
    "reshape": ("%v = reshape %d {shape=[8]}", "%q = reshape %x {shape=[8]}", True),
    "cat": ("%v = cat %d, %d {dim=1}", "%q = cat %x, %x {dim=1}", True),
}


@pytest.mark.parametrize("name", PASSED)
def test_what_is_quantized_already(name: str) -> None:
    passed, after, cancels = PASSED[name]
    before = f"graph(%x: u8[2, 4]) {{ {DEQUANTIZE}  {passed}  {QUANTIZE}  return %q }}"
    if cancels:
        after = f"graph(%x: u8[2, 4]) {{ {after}  return %q }}"
        check_pass("hoist-quantize", before=before, after=after, remark="it is quantized so already")
    else:
        check_pass("hoist-quantize", unchanged=before)


def test_another_scale_stays() -> None:
    other = DEQUANTIZE.replace("0.25", "0.3")
    check_pass("hoist-quantize", unchanged=f"graph(%x: u8[2, 4]) {{ {other}  %v = relu %d  {QUANTIZE}  return %q }}")


def test_codes_outside_the_range_stay() -> None:
    narrow = QUANTIZE.replace("255.0", "127.0")
    check_pass("hoist-quantize", unchanged=f"graph(%x: u8[2, 4]) {{ {DEQUANTIZE}  %v = relu %d  {narrow}  return %q }}")


def test_concatenation_of_other_scales_stays() -> None:
    check_pass(
        "hoist-quantize",
        unchanged=f"""graph(%x: u8[2, 4]) {{ {DEQUANTIZE}  %e = mul %s, 0.5  %v = cat %d, %e {{dim=0}}
          {QUANTIZE}  return %q }}""",
    )


PADDED = "%p = pad %d {before=[0, 1], after=[0, 1], value=-inf}  %v = max_pool %p {size=[3], stride=[2], dilation=[1]}"


def test_codes_that_are_pooled_over_padding_come_back() -> None:
    """No window lies in the padding, so that the lowest code in it is never the only one."""
    pooled = "%p = pad %x {before=[0, 1], after=[0, 1], value=0}  %v = max_pool %p {size=[3], stride=[2], dilation=[1]}"
    check_pass(
        "hoist-quantize",
        before=f"graph(%x: u8[2, 6]) {{ {DEQUANTIZE}  {PADDED}  {QUANTIZE}  return %q }}",
        after=f"graph(%x: u8[2, 6]) {{ {pooled}  return %v }}",
        remark="it is quantized so already",
    )


def test_windows_of_padding_alone_are_quantized_again() -> None:
    wide, pool = PADDED.replace("before=[0, 1]", "before=[0, 3]").split("  ")
    quantize = QUANTIZE.replace("%v", "%p")
    check_pass(
        "hoist-quantize",
        before=f"graph(%x: u8[2, 6]) {{ {DEQUANTIZE}  {wide}  {pool}  {QUANTIZE}  return %q }}",
        after=f"graph(%x: u8[2, 6]) {{ {DEQUANTIZE}  {wide}  {quantize}  {pool.replace('%p', '%q')}  return %v }}",
        remark="quantized earlier",
    )
