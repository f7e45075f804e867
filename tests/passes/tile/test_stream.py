"""stream: large results written past the cache."""

from __future__ import annotations

from compiler.perf.machine import Machine
from compiler.testing import check_pass

TEXT = """kernel @k(in %x: f32[8, 8], out %y: f32[8, 8], out %z: f32[8], inout %u: f32[8, 8], out %t: f32[8, 8]) {
  for %i in 0..8 {
    for %j in 0..8 { store %x[%i, %j], %y[%i, %j] store %x[%i, %j], %u[%i, %j] store %x[%i, %j], %t[%i, %j] }
    store %t[%i, 0], %z[%i]
  }
}"""


def test_only_large_results_that_nothing_reads() -> None:
    small = Machine(l3=511)
    check_pass(
        "stream",
        before=TEXT,
        after=TEXT.replace("%y[%i, %j]", "%y[%i, %j] stream"),
        machine=small,
        remark="%y written past the cache",
    )
    check_pass("stream", unchanged=TEXT, machine=Machine(l3=512))


def test_what_may_be_small_is_not_written_past_the_cache() -> None:
    text = """kernel @k(size n in {sizes}, in %x: f32[n], out %y: f32[n]) {{
      for %i in 0..n {{ store %x[%i], %y[%i]{stream} }}
    }}"""
    small = Machine(l3=512)
    check_pass("stream", unchanged=text.format(sizes="1..4097 like 500", stream=""), machine=small)
    large = "501..4097 like 600"
    check_pass(
        "stream",
        before=text.format(sizes=large, stream=""),
        after=text.format(sizes=large, stream=" stream"),
        machine=small,
    )
