"""flush-exponentials: exponentials of a softmax that only sums read."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

HEAD = "graph(%x: f32[3, 8], %v: f32[8, 2], %s: f32[3, 1])"
SHIFTED = "%m = amax %x {dims=[1], keepdim=true}  %d = sub %x, %m"
WEIGHTED = "%t = sum %e {dims=[1], keepdim=true}  %p = div %e, %t  %y = matmul %p, %v  return %y"


def test_probabilities_of_a_product() -> None:
    check_pass(
        "flush-exponentials",
        before=f"{HEAD} {{ {SHIFTED}  %e = exp %d  {WEIGHTED} }}",
        after=f"{HEAD} {{ {SHIFTED}  %e = exp_ftz %d  {WEIGHTED} }}",
        remark="small exponentials flushed",
        special=False,  # infinite values times probabilities that are flushed
    )


@pytest.mark.parametrize("function", ["silu", "gelu", "hardswish"])
def test_a_function_of_the_probabilities_is_not_proportional_to_them(function: str) -> None:
    """Their formulas are quotients or products of the operand and something else."""
    tail = f"%t = sum %e {{dims=[1], keepdim=true}}  %p = div %e, %t  %q = {function} %p  %y = matmul %q, %v  return %y"
    check_pass("flush-exponentials", unchanged=f"{HEAD} {{ {SHIFTED}  %e = exp %d  {tail} }}")


def test_a_guarded_maximum() -> None:
    guarded = "%m = amax %x {dims=[1], keepdim=true}  %c = eq %m, -inf  %g = where %c, 0.0, %m  %d = sub %x, %g"
    check_pass(
        "flush-exponentials",
        before=f"{HEAD} {{ {guarded}  %e = exp %d  {WEIGHTED} }}",
        after=f"{HEAD} {{ {guarded}  %e = exp_ftz %d  {WEIGHTED} }}",
        special=False,
    )


def test_the_sum_of_a_logarithm() -> None:
    tail = "%t = sum %e {dims=[1], keepdim=true}  %l = log %t  %y = sub %d, %l  return %y"
    check_pass(
        "flush-exponentials",
        before=f"{HEAD} {{ {SHIFTED}  %e = exp %d  {tail} }}",
        after=f"{HEAD} {{ {SHIFTED}  %e = exp_ftz %d  {tail} }}",
    )


@pytest.mark.parametrize(
    "lines",
    [
        f"{SHIFTED}  %e = exp %d  %t = sum %e {{dims=[1], keepdim=true}}  %p = div %e, %t  return %p",
        f"{SHIFTED}  %e = exp %d  %l = log %e  %y = matmul %l, %v  return %y",
        f"{SHIFTED}  %e = exp %d  %q = div %s, %e  %y = matmul %q, %v  return %y",
        f"%d = sub %x, %s  %e = exp %d  {WEIGHTED}",
        f"%c = lt %s, 0.0  %m = amax %x {{dims=[1], keepdim=true}}  %g = where %c, 0.0, %m  %d = sub %x, %g  %e = exp %d  {WEIGHTED}",
        f"%m = amin %x {{dims=[1], keepdim=true}}  %d = sub %x, %m  %e = exp %d  {WEIGHTED}",
    ],
    ids=["a result", "a logarithm", "a divisor", "another shift", "another guard", "a minimum"],
)
def test_what_stays(lines: str) -> None:
    check_pass("flush-exponentials", unchanged=f"{HEAD} {{ {lines} }}", special=False)


@pytest.mark.parametrize(
    "shift",
    ["amax %x {dims=[1]}", "max_pool %x {size=[2, 2], stride=[2, 2], dilation=[1, 1]}"],
    ids=["of another row", "of a part"],
)
def test_the_maximum_is_that_of_the_whole_row(shift: str) -> None:
    text = f"graph(%x: f32[3, 3]) {{ %m = {shift}  %d = sub %x, %m  %e = exp %d  %y = sum %e {{dims=[1]}}  return %y }}"
    check_pass("flush-exponentials", unchanged=text)
