"""expand-divisions: a loop of vectors multiplies by the reciprocal of what it divides by."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512, SSE
from compiler.testing.checks import check_pass

KERNEL = """kernel @k(in %x: f32[2, 2048], in %s: f32[2, 2048], out %y: f32[2, 2048]) {{
  parallel %i in 0..2 {{ %t = reduce add %k in 0..2048 {{ yield %x[%i, %k] }}  for %j in 0..2048 tile 64 lanes 16 {{ {body} }} }} }}"""
MULTIPLIED = """%n = %x[%i, %j]  %size0 = abs(%t)  %scale = where(%size0 < 1.0842021724855044e-19, 9.223372036854776e+18:f32, where(%size0 > 4.253529586511731e+37, 1.0842021724855044e-19:f32, 1.0))
  %a = %n * %scale  %b = %t * %scale  %r = 1.0 / %b  %p = %a * %r  %d = fma(-%p, %b, %a)  %size = abs(%d)
  store where((%size > 0.0) & (%size < inf), fma(%d, %r, %p), %p), %y[%i, %j]"""


def test_a_row_is_divided_by_its_sum() -> None:
    check_pass(
        "expand-divisions",
        before=KERNEL.format(body="store %x[%i, %j] / %t, %y[%i, %j]"),
        after=KERNEL.format(body=MULTIPLIED),
        remark="divisions by the same number multiply by its reciprocal",
        machine=AVX512,
    )


@pytest.mark.parametrize(
    "body",
    [
        "store %x[%i, %j] / %s[%i, %j], %y[%i, %j]",
        "store %t / %s[%i, %j], %y[%i, %j]",
        "store %x[%i, %j] * (1.0 / %t), %y[%i, %j]",
        "store %x[%i, %j] / 1e-39, %y[%i, %j]",
    ],
    ids=["other divisors", "one dividend", "numbers", "an infinite reciprocal"],
)
def test_what_stays(body: str) -> None:
    check_pass("expand-divisions", unchanged=KERNEL.format(body=body), machine=AVX512)


def test_short_rows_stay() -> None:
    short = KERNEL.format(body="store %x[%i, %j] / %t, %y[%i, %j]").replace("2048", "1024")
    check_pass("expand-divisions", unchanged=short, machine=AVX512)


def test_two_instructions_for_a_multiply_add_stay() -> None:
    check_pass("expand-divisions", unchanged=KERNEL.format(body="store %x[%i, %j] / %t, %y[%i, %j]"), machine=SSE)
