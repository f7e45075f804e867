"""nontemporal-stores: large results written past the cache."""

from __future__ import annotations

import pytest

from compiler.cost.machine import Machine
from compiler.testing.checks import check_pass

TEXT = """kernel @k(in %x: f32[8, 8], out %y: f32[8, 8], out %z: f32[8], inout %u: f32[8, 8], out %t: f32[8, 8]) {
  for %i in 0..8 {
    for %j in 0..8 { store %x[%i, %j], %y[%i, %j] store %x[%i, %j], %u[%i, %j] store %x[%i, %j], %t[%i, %j] }
    store %t[%i, 0], %z[%i]
  }
}"""


def test_only_large_results_that_nothing_reads() -> None:
    small = Machine(l3=4 * 255)
    check_pass(
        "nontemporal-stores",
        before=TEXT,
        after=TEXT.replace("%y[%i, %j]", "%y[%i, %j] nontemporal"),
        machine=small,
        remark="%y stored non-temporally",
    )
    check_pass("nontemporal-stores", unchanged=TEXT, machine=Machine(l3=4 * 256))


@pytest.mark.parametrize(
    ("sizes", "nontemporal"),
    [
        ("1..4097 hint 600", " nontemporal if n*4 >= 2000"),  # each call knows
        ("501..4097 hint 600", " nontemporal"),  # always
        ("1..4097 hint 499", ""),  # seldom
    ],
)
def test_results_of_open_size(sizes: str, nontemporal: str) -> None:
    text = """kernel @k(size n in SIZES, in %x: f32[n], out %y: f32[n]) {
      for %i in 0..n { store %x[%i], %y[%i]STREAM }
    }""".replace("SIZES", sizes)
    before, after = text.replace("STREAM", ""), text.replace("STREAM", nontemporal)
    small = Machine(l3=8000)
    if nontemporal:
        check_pass("nontemporal-stores", before=before, after=after, machine=small)
    else:
        check_pass("nontemporal-stores", unchanged=before, machine=small)
