"""Interleave: rows of a scan side by side."""

from __future__ import annotations

from compiler.testing.checks import check_pass

SCAN = """kernel @scan(in %x: f32[10, 6], out %y: f32[10, 6]) {{
  parallel %i in 0..10{tile} {{
    local %c: f32[]
    store 0.0, %c[]
    for %k in 0..6 {{
      %old = %c[]
      %new = %old + {value}
      store %new, %c[]
      store %new, %y[%i, %k]
    }}
  }}
}}"""


def test_rows_are_taken_side_by_side() -> None:
    check_pass(
        "unroll-and-jam",
        before=SCAN.format(tile="", value="%x[%i, %k]"),
        after=SCAN.format(tile=" tile 4", value="%x[%i, %k]"),
    )


def test_heavy_steps_are_gathered_into_lanes() -> None:
    check_pass(
        "unroll-and-jam{min-lane-ops=10}",
        before=SCAN.format(tile="", value="exp(%x[%i, %k])").replace("10", "40"),
        after=SCAN.format(tile=" tile 16 lanes 16", value="exp(%x[%i, %k])").replace("10", "40"),
    )


def test_lanes_are_enough() -> None:
    check_pass("unroll-and-jam", unchanged=SCAN.format(tile=" tile 8 lanes 8", value="%x[%i, %k]"))


def test_steps_that_wait_for_nothing_stay() -> None:
    check_pass(
        "unroll-and-jam",
        unchanged="""kernel @copy(in %x: f32[10, 6], out %y: f32[10, 6]) {
          parallel %i in 0..10 { for %k in 0..6 { store %x[%i, %k], %y[%i, %k] } } }""",
    )


def test_chains_inside_lanes_stay() -> None:
    check_pass(
        "unroll-and-jam",
        unchanged="""kernel @scan(in %x: f32[6, 8, 16], out %y: f32[6, 8, 16]) {
          parallel %j in 0..16 tile 16 lanes 16 { parallel %i in 0..8 {
            local %c: f32[]
            store 0.0, %c[]
            for %k in 0..6 {
              %new = %c[] + %x[%k, %i, %j]
              store %new, %c[]
              store %new, %y[%k, %i, %j]
            } } } }""",
    )
