"""saturate-codes: codes are clamped as integers, which CPUs do as they narrow them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import Tensor

import compiler
from compiler.cost.machine import AVX512, SSE
from compiler.testing.checks import check_pass

CODES = "%least = maximum %i, 0  %most = minimum %least, 255  %q = cast %most {dtype=u8}"
CLAMPS = "%low = maximum %z, 0.0  %high = minimum %low, 255.0  %q = cast %high {dtype=u8}"
SUM = "%s = constant f32[2, 1] [[0.5], [0.25]]  %c = constant f32[2, 1] [[3], [-8]]  %f = cast %x {dtype=f32}  %m = mul %f, %s  %b = add %m, %c"
SCALED = "%s = constant f32[2, 1] [[1], [0.5]]  %c = constant f32[2, 1] [[6], [-16]]  %f = cast %x {dtype=f32}"


def graph(*lines: str, x: str = "f32[2, 20]") -> str:
    return f"graph(%x: {x}) {{ {'  '.join(lines)}  return %q }}"


@pytest.mark.parametrize("factor", [8.0, 3e30], ids=["within 32 bits", "beyond them"])
def test_bounds_of_codes_are_integers(factor: float) -> None:
    check_pass(
        "saturate-codes",
        before=graph(f"%y = mul %x, {factor}  %r = round %y  %z = add %r, 3.0", CLAMPS),
        after=graph(
            f"%y = mul %x, {factor}  %u = minimum %y, 252.0  %r = round %u  %n = cast %r {{dtype=i32}}  %i = add %n, 3",
            CODES,
        ),
        remark="clamped as integers",
        special=False,  # a conversion of NaN may give any integer
    )


def test_a_bound_between_two_codes_is_truncated() -> None:
    check_pass(
        "saturate-codes",
        before=graph("%r = round %x  %low = maximum %r, 0.0  %high = minimum %low, 127.5  %q = cast %high {dtype=u8}"),
        after=graph("%u = minimum %x, 127.0  %r = round %u  %i = cast %r {dtype=i32}", CODES),
        special=False,
    )


def test_a_scaled_sum_of_integers_is_one_multiply_add() -> None:
    check_pass(
        "saturate-codes",
        before=graph(SUM, "%p = maximum %b, 0.0  %t = mul %p, 2.0  %z = round %t", CLAMPS, x="i32[2, 20]"),
        after=graph(SCALED, "%a = fma %f, %s, %c  %u = minimum %a, 255.0  %r = round %u  %i = cast %r {dtype=i32}", CODES, x="i32[2, 20]"),
        machine=AVX512,
    )  # fmt: skip


def test_two_instructions_where_none_fuses_them() -> None:
    check_pass(
        "saturate-codes",
        before=graph(SUM, "%t = mul %b, 2.0  %z = round %t", CLAMPS, x="i32[2, 20]"),
        after=graph(
            SCALED, "%m = mul %f, %s  %a = add %m, %c  %u = minimum %a, 255.0  %r = round %u  %i = cast %r {dtype=i32}", CODES, x="i32[2, 20]"
        ),
        machine=SSE,
    )  # fmt: skip


def test_an_activation_bounds_codes() -> None:
    relu6 = "%p = maximum %b, 0.0  %a = minimum %p, 6.0  %t = mul %a, 42.0  %r = round %t  %q = cast %r {dtype=u8}"
    scaled = "%s = constant f32[2, 1] [[21], [10.5]]  %c = constant f32[2, 1] [[126], [-336]]  %f = cast %x {dtype=f32}"
    check_pass(
        "saturate-codes",
        before=graph(SUM, relu6, x="i32[2, 20]"),
        after=graph(scaled, "%a = fma %f, %s, %c  %u = minimum %a, 252.0  %r = round %u  %i = cast %r {dtype=i32}", CODES, x="i32[2, 20]"),
        machine=AVX512,
    )  # fmt: skip


SMALL = "%s = constant f32[2, 1] [[0.125], [0.0625]]  %c = constant f32[2, 1] [[3], [-8]]"
NARROWED_CODES = "%i = cast %r {dtype=i32}  " + CODES


def test_bounded_sums_are_clamped_as_integers_alone() -> None:
    check_pass(
        "saturate-codes",
        before=graph(SMALL, "%f = cast %x {dtype=f32}  %m = mul %f, %s  %b = add %m, %c  %p = relu %b  %r = round %p",
                     "%h = minimum %r, 255.0  %q = cast %h {dtype=u8}", x="i32[2, 20]"),
        after=graph(SMALL, "%f = cast %x {dtype=f32}  %a = fma %f, %s, %c  %r = round %a", NARROWED_CODES, x="i32[2, 20]"),
        machine=AVX512,
    )  # fmt: skip


def test_a_scaled_sum_of_two_values_is_two_multiply_adds() -> None:
    residual = "%g = cast %y {dtype=f32}  %d = sub %g, 128.0  %e = mul %d, 0.5"
    after = graph(
        "%s = constant f32[2, 1] [[0.25], [0.125]]  %c = constant f32[2, 1] [[-122], [-144]]",
        "%f = cast %x {dtype=f32}  %g = cast %y {dtype=f32}  %t = add %g, %c  %a = fma %f, %s, %t  %r = round %a",
        NARROWED_CODES, x="i32[2, 20], %y: u8[2, 20]",
    )  # fmt: skip
    check_pass(
        "saturate-codes",
        before=graph(
            SMALL, "%f = cast %x {dtype=f32}  %m = mul %f, %s  %b = add %m, %c", residual,
            "%w = add %b, %e  %p = relu %w  %t = mul %p, 2.0  %r = round %t  %h = minimum %r, 255.0  %q = cast %h {dtype=u8}",
            x="i32[2, 20], %y: u8[2, 20]",
        ),
        after=after,
        machine=AVX512,
    )  # fmt: skip


PRODUCT = "%w = constant i8[2, 3] [[1, 2, 3], [4, 5, 6]]  %n = matmul %x, %w {dtype=i32}"
ZERO_POINTS = "%z = constant i32[3] [0, 4, 8]  %d = sub %n, %z  %f = cast %d {dtype=f32}"
SHIFTED = (
    "%m = mul %f, 0.125  %b = add %m, 3.0  %p = relu %b  %r = round %p  %h = minimum %r, 255.0  %q = cast %h {dtype=u8}"
)


def test_a_zero_point_of_products_is_a_summand() -> None:
    folded = "%c = constant f32[3] [3, 2.5, 2]  %f = cast %n {dtype=f32}  %a = fma %f, 0.125, %c  %r = round %a"
    check_pass(
        "saturate-codes",
        before=graph(PRODUCT, ZERO_POINTS, SHIFTED, x="u8[2, 2]"),
        after=graph(PRODUCT, folded, NARROWED_CODES, x="u8[2, 2]"),
        machine=AVX512,
    )


def test_a_zero_point_stays_where_integers_may_wrap() -> None:
    kept = ZERO_POINTS.replace("%n", "%x")
    check_pass(
        "saturate-codes",
        before=graph(kept, SHIFTED, x="i32[2, 3]"),
        after=graph(kept, "%a = fma %f, 0.125, 3.0  %r = round %a", NARROWED_CODES, x="i32[2, 3]"),
        machine=AVX512,
    )


@pytest.mark.parametrize(
    "lines",
    [
        "%r = round %x  %high = minimum %r, 255.0  %q = cast %high {dtype=u8}",
        "%r = round %x  %low = maximum %r, 0.0  %q = cast %low {dtype=u8}",
        "%r = round %x  %low = maximum %r, 1.0  %high = minimum %low, 255.0  %q = cast %high {dtype=u8}",
        "%r = round %x  %z = add %r, 0.5  " + CLAMPS,
        "%r = round %x  %z = add %r, -3.0  " + CLAMPS,
        "%z = add %x, 3.0  " + CLAMPS,
        "%r = round %x  %a = add %r, 1e8  %z = add %a, -1e8  " + CLAMPS,
        "%r = round %x  %low = maximum %r, -128.0  %high = minimum %low, 127.0  %q = cast %high {dtype=i8}",
    ],
    ids=[
        "no least",
        "no greatest",
        "another least",
        "no integer",
        "negative zero point",
        "truncated",
        "rounded summands",
        "signed",
    ],
)
def test_what_stays(lines: str) -> None:
    check_pass("saturate-codes", unchanged=graph(lines), special=False)


def test_a_sum_that_others_read_is_scaled_once() -> None:
    before = graph(SUM, "%t = mul %b, 2.0  %z = round %t", CLAMPS, x="i32[2, 20]").replace("return %q", "return %q, %b")
    after = graph(
        SUM, "%t = mul %b, 2.0  %u = minimum %t, 255.0  %r = round %u  %i = cast %r {dtype=i32}", CODES, x="i32[2, 20]"
    )
    check_pass("saturate-codes", before=before, after=after.replace("return %q", "return %q, %b"))


Q = torch.ops.quantized_decomposed
NARROWED: dict[str, Callable[[Tensor], Tensor]] = {
    "u8": lambda x: Q.quantize_per_tensor(x, 0.05, 128, 0, 255, torch.uint8),
    "i8": lambda x: (x * 20).clamp(-1000, 1000).to(torch.int32).clamp(-128, 127).to(torch.int8),
}


@pytest.mark.parametrize("target", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("columns", [16, 32, 64, 80, 112, 133])
@pytest.mark.parametrize("name", NARROWED)
def test_narrowed_vectors_are_in_order(target: str, columns: int, name: str) -> None:
    x = torch.linspace(-9, 9, 14 * columns).reshape(14, columns)
    x[0, :7] = torch.tensor([math.inf, -math.inf, 1e30, -1e30, 3e9, -3e9, math.nan])
    compiled = compiler.compile(NARROWED[name], (x,), options={"target": target})
    assert torch.equal(compiled(x), NARROWED[name](x))
