"""jam-reductions: short rows side by side, whose reductions wait for each other."""

from __future__ import annotations

from compiler.testing.checks import check_pass

SOFTMAX = """kernel @softmax(in %x: f32[100, {n}], out %y: f32[100, {n}]) {{
  parallel %i in 0..100{tile} {{
    local %e: f32[{n}]
    %m = reduce max %k in 0..{n} lanes 16 {{ yield %x[%i, %k] }}
    %s = reduce add %l in 0..{n} lanes 16 {{
      %w = exp(%x[%i, %l] - %m)
      store %w, %e[%l]
      yield %w
    }}
    for %j in 0..{n} lanes 16 {{ store %e[%j] / %s, %y[%i, %j] }}
  }}
}}"""

CENTERED = """kernel @norm(in %x: f32[100, 90], out %y: f32[100, 90]) {{
  parallel %i in 0..100{tile} {{
    %a = reduce add %k in 0..90 lanes 16 {{ yield %x[%i, %k] }}
    %mean = {mean}
    %b = reduce add %l in 0..90 lanes 16 {{ yield (%x[%i, %l] - %mean) * (%x[%i, %l] - %mean) }}
    for %j in 0..90 lanes 16 {{ store {result}, %y[%i, %j] }}
  }}
}}"""


def test_rows_are_interleaved_up_to_a_number_of_vectors() -> None:
    for n, tile in ((40, " tile 4"), (77, " tile 3"), (128, " tile 2")):
        check_pass("jam-reductions", before=SOFTMAX.format(n=n, tile=""), after=SOFTMAX.format(n=n, tile=tile))


def test_empty_rows_are_no_vectors() -> None:
    check_pass("jam-reductions", before=SOFTMAX.format(n=0, tile=""), after=SOFTMAX.format(n=0, tile=" tile 4"))


def test_long_rows_stay() -> None:
    check_pass("jam-reductions", unchanged=SOFTMAX.format(n=129, tile=""))


def test_rows_that_are_tiled_stay() -> None:
    check_pass("jam-reductions", unchanged=SOFTMAX.format(n=40, tile=" tile 2"))


def test_a_single_reduction_is_hidden_by_the_next_row() -> None:
    check_pass(
        "jam-reductions",
        unchanged="""kernel @k(in %x: f32[100, 40], out %y: f32[100, 40]) {
          parallel %i in 0..100 {
            %s = reduce add %k in 0..40 lanes 16 { yield %x[%i, %k] }
            for %j in 0..40 lanes 16 { store %x[%i, %j] - %s, %y[%i, %j] }
          } }""",
    )


def test_a_divided_sum_does_not_wait_behind_divided_vectors() -> None:
    for mean, result, tile in (
        ("%a / 90.0", "(%x[%i, %j] - %mean) / %b", ""),
        ("%a / 90.0", "(%x[%i, %j] - %mean) * %b", " tile 2"),
        ("%a * 0.01", "(%x[%i, %j] - %mean) / %b", " tile 2"),
    ):
        before, after = (CENTERED.format(mean=mean, result=result, tile=t) for t in ("", tile))
        if tile:
            check_pass("jam-reductions", before=before, after=after)
        else:
            check_pass("jam-reductions", unchanged=before)


def test_few_rows_are_left_to_threads() -> None:
    text = SOFTMAX.format(n=40, tile="").replace("100", "3")
    check_pass("jam-reductions", unchanged=text)


def test_loops_inside_rows_stay() -> None:
    check_pass(
        "jam-reductions",
        unchanged="""kernel @k(in %x: f32[100, 4, 40], out %y: f32[100, 4]) {
          parallel %i in 0..100 {
            %s = reduce max %k in 0..40 lanes 16 { yield %x[%i, 0, %k] }
            for %j in 0..4 {
              %t = reduce add %l in 0..40 lanes 16 { yield %x[%i, %j, %l] - %s }
              store %t, %y[%i, %j]
            }
          } }""",
    )
