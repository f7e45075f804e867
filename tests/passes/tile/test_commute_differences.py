"""commute-differences: where the sign does not count, the broadcast is what is subtracted."""

from __future__ import annotations

import pytest

from compiler.testing.checks import check_pass

LANES = "kernel @k(in %x: f32[3, 5], in %y: f32[5, 16], out %z: f32[3, 16]) {{ parallel %i in 0..3 {{ for %j in 0..16 tile 16 lanes 16 {{ {body} }} }} }}"
SUM = "%a = reduce {op} %r in 0..5 {{ %d = {difference}  yield {term} }}  store %a, %z[%i, %j]"
FIRST, LAST = "%x[%i, %r] - %y[%r, %j]", "%y[%r, %j] - %x[%i, %r]"


@pytest.mark.parametrize(("op", "term"), [("add", "%d * %d"), ("max", "abs(%d)"), ("add", "sqrt(abs(%d)) + %d * %d")])
def test_squares_and_absolute_values(op: str, term: str) -> None:
    before, after = (LANES.format(body=SUM.format(op=op, difference=d, term=term)) for d in (FIRST, LAST))
    check_pass("commute-differences", before=before, after=after, remark="%d has its broadcast operand last")


@pytest.mark.parametrize(
    ("difference", "term"),
    [
        (LAST, "%d * %d"),
        (FIRST, "%d * %d * %d"),
        (FIRST, "abs(%d) + %d"),
        (FIRST, "%d"),
        ("%x[%i, %r] + %y[%r, %j]", "%d * %d"),
        ("%x[0, %r] - %x[%i, %r]", "%d * %d"),  # of numbers that all lanes share
    ],
)
def test_other_values_stay(difference: str, term: str) -> None:
    check_pass(
        "commute-differences", unchanged=LANES.format(body=SUM.format(op="add", difference=difference, term=term))
    )


def test_local_buffers_of_lanes_are_vectors() -> None:
    copy = "local %t: f32[5]  for %k in 0..5 {{ store %y[%k, %j], %t[%k] }}  {sum_}"
    before, after = (
        LANES.format(body=copy.format(sum_=SUM.format(op="add", difference=d, term="%d * %d")))
        for d in ("%x[%i, %r] - %t[%r]", "%t[%r] - %x[%i, %r]")
    )
    check_pass("commute-differences", before=before, after=after)
