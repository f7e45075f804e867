"""integer-contraction: products of dequantized values become products of bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import compiler
from compiler.testing.checks import check_pass
from tests.codegen.native import runnable_targets

WEIGHT = "constant i8[2, 3] [[-128, 5, 127], [7, -1, 0]]"


def test_zero_point_and_scales_follow_the_sum() -> None:
    check_pass(
        "integer-contraction",
        before=f"""graph(%x: u8[4, 2]) {{
          %w = {WEIGHT}  %s = constant f32[3] [0.5, 2, 3]
          %wide = cast %x {{dtype=f32}}  %shifted = sub %wide, 3.0  %a = mul %shifted, 0.25
          %wf = cast %w {{dtype=f32}}  %b = mul %wf, %s
          %y = matmul %a, %b
          return %y }}""",
        after=f"""graph(%x: u8[4, 2]) {{
          %w = {WEIGHT}  %p = matmul %x, %w {{dtype=i32}}
          %wi = cast %w {{dtype=i32}}  %sums = sum %wi {{dims=[0], keepdim=true}}  %c = mul %sums, %zp  %q = sub %p, %c
          %f = cast %q {{dtype=f32}}
          %s = constant f32[3] [0.5, 2, 3]  %t = reshape %s {{shape=[1, 3]}}  %u = mul 0.25, %t  %y = mul %f, %u
          return %y }}""".replace("%zp", "3"),
        remark="runs in integers",
        special=False,
    )


def test_zero_points_of_both_operands() -> None:
    check_pass(
        "integer-contraction",
        before="""graph(%x: i8[4, 2], %w: u8[2, 3], %zx: i8[4, 1], %zw: i32[3]) {
          %xf = cast %x {dtype=f32}  %zf = cast %zx {dtype=f32}  %a = sub %xf, %zf
          %wi = cast %w {dtype=i32}  %b0 = sub %wi, %zw  %b = cast %b0 {dtype=f32}
          %y = matmul %a, %b
          return %y }""",
        after="""graph(%x: i8[4, 2], %w: u8[2, 3], %zx: i8[4, 1], %zw: i32[3]) {
          %p = matmul %x, %w {dtype=i32}
          %wi = cast %w {dtype=i32}  %sw = sum %wi {dims=[0], keepdim=true}  %zi = cast %zx {dtype=i32}  %c = mul %sw, %zi  %q = sub %p, %c
          %xi = cast %x {dtype=i32}  %sx = sum %xi {dims=[1], keepdim=true}  %zt = reshape %zw {shape=[1, 3]}  %d = mul %sx, %zt  %r = sub %q, %d
          %zz = mul %zi, %zt  %e = mul %zz, 2  %t = add %r, %e
          %y = cast %t {dtype=f32}
          return %y }""",
        special=False,
    )


def test_images_are_padded_with_the_zero_point() -> None:
    conv = "{stride=[1], dilation=[1], groups=2}"
    check_pass(
        "integer-contraction",
        before=f"""graph(%x: u8[1, 2, 4]) {{
          %f = cast %x {{dtype=f32}}  %s = sub %f, 7.0  %a = mul %s, 0.5  %p = pad %a {{before=[0, 0, 1], after=[0, 0, 2]}}
          %w = constant i8[2, 1, 2] [[[1, -2]], [[3, 4]]]  %b = cast %w {{dtype=f32}}
          %y = conv %p, %b {conv}
          return %y }}""",
        after=f"""graph(%x: u8[1, 2, 4]) {{
          %p = pad %x {{before=[0, 0, 1], after=[0, 0, 2], value=7}}
          %w = constant i8[2, 1, 2] [[[1, -2]], [[3, 4]]]  %c = conv %p, %w {conv.replace("}", ", dtype=i32}")}
          %wi = cast %w {{dtype=i32}}
          %t = sum %wi {{dims=[1, 2], keepdim=true}}  %u = reshape %t {{shape=[1, 2, 1]}}  %z = mul %u, 7  %d = sub %c, %z
          %f = cast %d {{dtype=f32}}  %y = mul %f, 0.5
          return %y }}""",
        special=False,
    )


def test_a_zero_point_of_weights_needs_sums_over_windows() -> None:
    """A convolution with one filter of ones."""
    conv = "{stride=[2], dilation=[1]}"
    check_pass(
        "integer-contraction",
        before=f"""graph(%x: u8[1, 2, 6], %w: i8[5, 2, 3], %z: i32[5, 1, 1]) {{
          %a = cast %x {{dtype=f32}}
          %i = cast %w {{dtype=i32}}  %d = sub %i, %z  %b = cast %d {{dtype=f32}}
          %y = conv %a, %b {conv}
          return %y }}""",
        after=f"""graph(%x: u8[1, 2, 6], %w: i8[5, 2, 3], %z: i32[5, 1, 1]) {{
          %c = conv %x, %w {conv.replace("}", ", dtype=i32}")}
          %one = constant i8[] 1  %ones = expand %one {{shape=[1, 2, 3]}}
          %s = conv %x, %ones {conv.replace("}", ", dtype=i32}")}
          %t = reshape %z {{shape=[1, 5, 1]}}  %u = mul %s, %t  %v = sub %c, %u
          %y = cast %v {{dtype=f32}}
          return %y }}""",
        special=False,
    )


def test_scales_of_tokens_move_through_views() -> None:
    check_pass(
        "integer-contraction",
        before=f"""graph(%x: i8[2, 5, 2], %s: f32[2, 5, 1]) {{
          %f = cast %x {{dtype=f32}}  %a = mul %f, %s  %r = reshape %a {{shape=[10, 2]}}
          %w = {WEIGHT}  %b = cast %w {{dtype=f32}}
          %y = matmul %r, %b
          return %y }}""",
        after=f"""graph(%x: i8[2, 5, 2], %s: f32[2, 5, 1]) {{
          %r = reshape %x {{shape=[10, 2]}}  %w = {WEIGHT}  %p = matmul %r, %w {{dtype=i32}}
          %f = cast %p {{dtype=f32}}  %t = reshape %s {{shape=[10, 1]}}  %y = mul %f, %t
          return %y }}""",
    )


REFUSED = {
    "operand 0 is not quantized": f"""graph(%x: f32[4, 2]) {{
        %w = {WEIGHT}  %b = cast %w {{dtype=f32}}  %y = matmul %x, %b  return %y }}""",
    "scales or zero points vary along the sum": f"""graph(%x: i8[4, 2], %s: f32[2]) {{
        %f = cast %x {{dtype=f32}}  %a = mul %f, %s
        %w = {WEIGHT}  %b = cast %w {{dtype=f32}}  %y = matmul %a, %b  return %y }}""",
    "a view divides its groups": """graph(%x: i8[4, 4], %w: i8[3, 2, 2], %s: f32[3, 2, 1]) {
        %a = cast %x {dtype=f32}
        %f = cast %w {dtype=f32}  %g = mul %f, %s  %r = reshape %g {shape=[3, 4]}  %b = permute %r {dims=[1, 0]}
        %y = matmul %a, %b  return %y }""",
    "the padding needs a zero point that is one constant": """graph(%x: u8[1, 2, 4], %z: i32[], %w: i8[2, 2, 2]) {
        %i = cast %x {dtype=i32}  %d = sub %i, %z  %f = cast %d {dtype=f32}
        %p = pad %f {before=[0, 0, 1], after=[0, 0, 1]}  %b = cast %w {dtype=f32}
        %y = conv %p, %b {stride=[1], dilation=[1]}  return %y }""",
    "sums of 131072 products may not fit 32 bits": """graph(%x: i8[1, 131072], %w: i8[131072, 1]) {
        %a = cast %x {dtype=f32}  %b = cast %w {dtype=f32}  %y = matmul %a, %b  return %y }""",
    "zero points and scales are applied in f32": """graph(%x: i8[2, 4], %w: i8[4, 3], %s: f64[2, 1]) {
        %f = cast %x {dtype=f64}  %a = mul %f, %s  %b = cast %w {dtype=f64}  %y = matmul %a, %b  return %y }""",
    "the number of products is not known": """graph(size s0 in 1..9 hint 4, %x: i8[2, s0], %w: i8[s0, 3]) {
        %a = cast %x {dtype=f32}  %b = cast %w {dtype=f32}  %y = matmul %a, %b  return %y }""",
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_stays_says_why(reason: str) -> None:
    check_pass("integer-contraction", unchanged=REFUSED[reason], remark=reason)


@pytest.mark.parametrize(
    "value",
    ["%h = cast %x {dtype=f32}  %g = cast %h {dtype=i32}", "%h = cast %x {dtype=f32}  %e = exp %h  %g = cast %e {dtype=i32}"],
    ids=["float to integer", "a function of bytes"],
)  # fmt: skip
def test_what_is_not_dequantized_stays(value: str) -> None:
    check_pass(
        "integer-contraction",
        unchanged=f"graph(%x: i8[4, 2], %w: i32[2, 3]) {{ {value}  %y = matmul %g, %w  return %y }}",
    )


# numbers: the integers are those of NumPy, the floats those of one rounding


class Product(torch.nn.Module):
    """A linear layer or a convolution of quantized operands, as float arithmetic."""

    def __init__(
        self, weight: Tensor, zero: int, weight_zero: int, function: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.zero, self.weight_zero, self.function = zero, weight_zero, function

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.to(torch.float32)
        return self.function(x.to(torch.float32) - self.zero, w - self.weight_zero if self.weight_zero else w)


def random_bytes(dtype: torch.dtype, *shape: int) -> Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, dtype=dtype)


@pytest.mark.parametrize("x_dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("w_dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(("zero", "weight_zero"), [(0, 0), (5, 0), (-3, 11)])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 7, 5), (9, 64, 33)])
def test_linear_layers_have_the_bits_of_integers(
    x_dtype: torch.dtype, w_dtype: torch.dtype, zero: int, weight_zero: int, rows: int, inner: int, columns: int
) -> None:
    x, w = random_bytes(x_dtype, rows, inner), random_bytes(w_dtype, columns, inner)
    compiled = compiler.compile(Product(w, zero, weight_zero, torch.nn.functional.linear), (x,))
    assert compiled.remarks.select("integer-contraction")[0].kind == "applied"
    exact = (x.numpy().astype(np.int64) - zero) @ (w.numpy().astype(np.int64) - weight_zero).T
    np.testing.assert_array_equal(compiled(x).numpy(), exact.astype(np.float32))


@pytest.mark.parametrize("x_dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(("groups", "stride", "padding"), [(1, 1, 1), (2, 2, 0), (8, 1, 2)])
@pytest.mark.parametrize("weight_zero", [0, -9])
def test_convolutions_have_the_bits_of_integers(
    x_dtype: torch.dtype, groups: int, stride: int, padding: int, weight_zero: int
) -> None:
    x, w = random_bytes(x_dtype, 2, 8, 9, 7), random_bytes(torch.int8, 16, 8 // groups, 3, 3)

    def conv(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(a, b, None, stride, padding, groups=groups)

    compiled = compiler.compile(Product(w, 6, weight_zero, conv), (x,))
    assert compiled.remarks.select("integer-contraction")[0].kind == "applied"
    exact = conv(x.double() - 6, w.double() - weight_zero)
    np.testing.assert_array_equal(compiled(x).numpy(), exact.numpy().astype(np.float32))


def test_sums_do_not_overflow_at_the_ends_of_the_range() -> None:
    inner = (1 << 31) // (255 * 128) // 16 * 16
    x, w = torch.full((2, inner), 255, dtype=torch.uint8), torch.full((3, inner), -128, dtype=torch.int8)
    compiled = compiler.compile(Product(w, 0, 0, torch.nn.functional.linear), (x,))
    assert compiled.remarks.select("integer-contraction")[0].kind == "applied"
    np.testing.assert_array_equal(compiled(x).numpy(), np.full((2, 3), np.float32(-255 * 128 * inner)))


@pytest.mark.parametrize("target", runnable_targets())
@pytest.mark.parametrize("x_dtype", [torch.int8, torch.uint8], ids=str)
def test_every_target_has_the_same_integers(target: str, x_dtype: torch.dtype) -> None:
    """Vectors of 128, 256 and 512 bits, with and without dot instructions."""
    x, w = random_bytes(x_dtype, 9, 64), random_bytes(torch.int8, 33, 64)
    layer = Product(w, 5, 0, torch.nn.functional.linear)
    results = [compiler.compile(layer, (x,), options={"target": t})(x).numpy() for t in (target, "host")]
    exact = (x.numpy().astype(np.int64) - 5) @ w.numpy().astype(np.int64).T
    for result in results:
        np.testing.assert_array_equal(result, exact.astype(np.float32))


@pytest.mark.parametrize("target", runnable_targets())
def test_every_target_convolves_the_same_integers(target: str) -> None:
    """Padding, three channels, zero points of images and of weights."""
    x, w = random_bytes(torch.uint8, 1, 3, 6, 9), random_bytes(torch.int8, 20, 3, 3, 3)
    conv = partial(torch.nn.functional.conv2d, padding=1)
    compiled = compiler.compile(Product(w, 200, 7, conv), (x,), options={"target": target})
    assert [r.message for r in compiled.remarks.select("integer-contraction")] == ["runs in integers"]
    exact = conv(x.double() - 200, w.double() - 7)
    np.testing.assert_array_equal(compiled(x).numpy(), exact.numpy().astype(np.float32))
