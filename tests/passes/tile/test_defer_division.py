"""defer-division: weighted sums behind a softmax are divided, not the weights."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

KERNEL = """kernel @k(in %s: f32[5, 10], in %v: f32[10, 8], out %y: f32[5, 8]) {{
  parallel %i in 0..5 {{
    local %e: f32[10]
    local %p: f32[10]
    %m = reduce max %r in 0..10 {{ yield %s[%i, %r] }}
    %t = reduce add %r in 0..10 {{ %w = exp(%s[%i, %r] - %m)  store %w, %e[%r]  yield %w }}
    {rest}
  }} }}"""
DIVIDE = "for %k in 0..10 { store %e[%k] / %t, %p[%k] }"
SUM = "for %j in 0..8 { %a = reduce add %r in 0..10 { yield %p[%r] * %v[%r, %j] }  store exp(%a), %y[%i, %j] }"
DEFERRED = """for %j in 0..8 {
  %q = reduce add %r in 0..10 { yield %e[%r] * %v[%r, %j] }  %a = %q / %t  store exp(%a), %y[%i, %j] }"""


def test_each_sum_is_divided_once() -> None:
    check_pass(
        "defer-division",
        before=KERNEL.format(rest=f"{DIVIDE} {SUM}"),
        after=KERNEL.replace("local %p: f32[10]", "").format(rest=DEFERRED),
        remark="weighted sums are divided, not the weights",
        special=False,  # a product with 0 / 0 is divided later
    )


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("%a = ", "%b = reduce add %z in 0..10 { yield %p[%z] }  %a = "),  # the weights have another use
        ("%e[%k] / %t", "%e[%k] * %t"),
        ("%e[%k] / %t", "%e[%k] / %s[%i, %k]"),
    ],
)
def test_other_rows_stay(change: str, to: str) -> None:
    check_pass("defer-division", unchanged=KERNEL.format(rest=f"{DIVIDE} {SUM}".replace(change, to, 1)), special=False)


def test_more_sums_than_weights_stay() -> None:
    wide = KERNEL.format(rest=f"{DIVIDE} {SUM}").replace("0..8", "0..11").replace("8]", "11]")
    check_pass("defer-division", unchanged=wide, special=False)


def test_a_row_without_a_division_stays() -> None:
    check_pass("defer-division", unchanged=KERNEL.replace("local %p: f32[10]", "").format(rest=DEFERRED), special=False)
