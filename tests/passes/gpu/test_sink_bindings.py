"""sink-bindings: parallel loops without anything between them."""

from __future__ import annotations

from compiler.testing.checks import check_pass


def test_bindings_go_into_the_inner_loop() -> None:
    check_pass(
        "sink-bindings",
        before="""kernel @k(in %x: f32[4], out %y: f32[4, 6]) {
          parallel %i in 0..4 { %v = %x[%i] * 2.0  parallel %j in 0..6 { store %v, %y[%i, %j] } } }""",
        after="""kernel @k(in %x: f32[4], out %y: f32[4, 6]) {
          parallel %i in 0..4 { parallel %j in 0..6 { %v = %x[%i] * 2.0  store %v, %y[%i, %j] } } }""",
    )


def test_other_statements_stay_between_loops() -> None:
    check_pass("sink-bindings", unchanged="""kernel @k(in %x: f32[4], out %z: f32[4], out %y: f32[4, 6]) {
      parallel %i in 0..4 { store %x[%i], %z[%i]  parallel %j in 0..6 { store %x[%i], %y[%i, %j] } } }""")  # fmt: skip
