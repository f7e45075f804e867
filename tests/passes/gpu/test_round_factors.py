"""round-factors: probabilities of attention in the dtype of the values."""

from __future__ import annotations

from compiler.testing.checks import check_pass

TEXT = """kernel @k(in %p: f32[4, 8], in %v: f16[8, 6], out %y: DTYPE[4, 6]) {
  parallel %i in 0..4 { parallel %j in 0..6 {
    %s = reduce add %r in 0..8 { yield FACTOR * cast<f32>(%v[%r, %j]) }
    store RESULT, %y[%i, %j] } } }"""


def text(dtype: str, factor: str, result: str) -> str:
    return TEXT.replace("DTYPE", dtype).replace("FACTOR", factor).replace("RESULT", result)


def test_a_factor_is_rounded_as_the_result_is() -> None:
    check_pass(
        "round-factors",
        before=text("f16", "%p[%i, %r]", "cast<f16>(%s)"),
        after=text("f16", "cast<f32>(cast<f16>(%p[%i, %r]))", "cast<f16>(%s)"),
        remark="%s: factors of f16",
        special=False,
    )


def test_results_that_are_not_rounded_keep_their_factors() -> None:
    check_pass("round-factors", unchanged=text("f32", "%p[%i, %r]", "%s"))
