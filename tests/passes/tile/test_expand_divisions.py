"""expand-divisions: a loop of vectors multiplies by the reciprocal of what it divides by."""

from __future__ import annotations

import pytest

from compiler.analysis.sum_shares import SumShares
from compiler.cost.machine import AVX512, SSE
from compiler.ir.text.tile_parser import parse_kernel
from compiler.ir.tile.kernel import Store, walk
from compiler.testing.checks import check_pass

KERNEL = """kernel @k(in %x: f32[2, 2048], in %s: f32[2, 2048], out %y: f32[2, 2048]) {{
  parallel %i in 0..2 {{ %t = reduce add %k in 0..2048 {{ yield %x[%i, %k] }}  for %j in 0..2048 tile 64 lanes 16 {{ {body} }} }} }}"""
POWER = "where(%size < 1.0842021724855044e-19, 9.223372036854776e+18:f32, where(%size > 4.253529586511731e+37, 1.0842021724855044e-19:f32, 1.0))"
MULTIPLIED = f"""%n = %x[%i, %j]  %size = abs(%t)  %scale = copysign({POWER}, %t)
  %a = %n * %scale  %b = %t * %scale  %r = 1.0 / %b  %p = %a * %r  %q = fma(-fma(%p, %b, -%a), %r, %p)
  store where(%q == %q, %q, %p), %y[%i, %j]"""
TERMS = """kernel @k(in %x: f32[2, 2048], in %s: f32[2, 2048], out %y: f32[2, 2048]) {{
  parallel %i in 0..2 {{
    local %e: f32[2048]
    %t1 = reduce add %k in 0..2000 {{ %v = {term}  store %v, %e[%k]  yield %v }}
    %t2 = reduce add %l in 2000..2048 {{ %w = {term2}  store %w, %e[%l]  yield %w }}
    %t = %t1 + %t2
    for %j in 0..2048 tile 64 lanes 16 {{ {body} }} }} }}"""
SHARE = f"""%n = %e[%j]  %size = abs(%t)  %scale = {POWER}
  %a = %n * %scale  %b = %t * %scale  %r = 1.0 / %b  %p = %a * %r
  store fma(-fma(%p, where(%b < inf, %b, 1.0), -%a), %r, %p), %y[%i, %j]"""


def test_a_row_is_divided_by_its_sum() -> None:
    check_pass(
        "expand-divisions",
        before=KERNEL.format(body="store %x[%i, %j] / %t, %y[%i, %j]"),
        after=KERNEL.format(body=MULTIPLIED),
        remark="divisions by the same number multiply by its reciprocal",
        machine=AVX512,
    )


@pytest.mark.parametrize("term", ["exp({x})", "max({x}, 0.0)", "where({x} < -1.0, 0.0, {x} * {x})"])
def test_shares_of_a_sum(term: str) -> None:
    """A term that is not negative is at most the sum, so that its share is finite."""
    first, second = term.format(x="%x[%i, %k]"), term.format(x="%x[%i, %l]")
    before = TERMS.format(term=first, term2=second, body="store %e[%j] / %t, %y[%i, %j]")
    check_pass(
        "expand-divisions", before=before, after=TERMS.format(term=first, term2=second, body=SHARE), machine=AVX512
    )


@pytest.mark.parametrize(
    ("term", "divisor"), [("%x[%i, {k}]", "%t"), ("exp(%x[%i, {k}])", "%t1"), ("exp(%x[%i, {k}])", "(%t + -1.0)")]
)
def test_what_may_exceed_its_divisor(term: str, divisor: str) -> None:
    """Terms that may be negative, the sum of a part of them, and what is less than their sum have general quotients."""
    body = f"%u = {divisor}  store %e[%j] / %u, %y[%i, %j]"
    kernel = parse_kernel(TERMS.format(term=term.format(k="%k"), term2=term.format(k="%l"), body=body))
    shares = SumShares(kernel)
    (quotient,) = [c for s in walk(kernel.body) if isinstance(s, Store) for c in s.value.calls]
    assert not shares.is_share(*quotient.operands)


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
