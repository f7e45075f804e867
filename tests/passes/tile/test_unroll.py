"""Unroll: short windows are written out, long loops are counted."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX2, AVX512
from compiler.testing.checks import check_pass

WINDOW = """kernel @pool(in %x: f32[6, 6], out %y: f32[4, 4]) {{
  for %i in 0..4 {{
    for %j in 0..4 {{
      %m = reduce max %a in 0..3{unroll}, %b in 0..3{unroll} {{ yield %x[%i + %a, %j + %b] }}
      store %m, %y[%i, %j]
    }}
  }}
}}"""


def test_a_window_is_written_out() -> None:
    check_pass("unroll", before=WINDOW.format(unroll=""), after=WINDOW.format(unroll=" unroll 3"))


def test_only_as_many_steps_as_allowed() -> None:
    check_pass(
        "unroll{max-steps=3}",
        before=WINDOW.format(unroll=""),
        after=WINDOW.format(unroll="").replace("%b in 0..3", "%b in 0..3 unroll 3"),
    )


def test_a_long_reduction_is_counted() -> None:
    check_pass(
        "unroll",
        unchanged="""kernel @sum(in %x: f32[4, 100], out %y: f32[4]) {
          for %i in 0..4 { %s = reduce add %k in 0..100 { yield %x[%i, %k] }  store %s, %y[%i] } }""",
    )


PRODUCT = """kernel @product(in %x: f32[12, 100], const %w: f32[100, 16], out %y: f32[12, 16]) {{
  for %i in 0..12 tile 6 {{
    for %j in 0..16 tile 16 lanes 8 {{
      %s = reduce add %k in 0..100{unroll} {{ yield %x[%i, %k] * %w[%k, %j] }}
      store %s, %y[%i, %j]
    }}
  }}
}}"""


def test_steps_of_few_multiply_adds_share_a_jump() -> None:
    """Twelve of them take as long as the instructions around them, which wide vectors and registers leave behind."""
    check_pass("unroll", before=PRODUCT.format(unroll=""), after=PRODUCT.format(unroll=" unroll 4"), machine=AVX2)
    check_pass("unroll", unchanged=PRODUCT.format(unroll=""), machine=AVX512)


NORM = """kernel @norm(in %x: f32[32, 192], out %y: f32[32]) {{
  for %i in 0..32 tile {rows} {{
    %s = reduce add %k in 0..192 tile 64 lanes 16{unroll} {{ yield %x[%i, %k] }}
    store %s, %y[%i]
  }}
}}"""


def test_few_vectors_are_written_out_and_many_counted() -> None:
    """Three steps of four vectors are a dozen instructions for one row, and four hundred for a tile of 32."""
    check_pass("unroll", before=NORM.format(rows=1, unroll=""), after=NORM.format(rows=1, unroll=" unroll 3"))
    check_pass("unroll", unchanged=NORM.format(rows=32, unroll=""))


def test_steps_that_share_a_word_are_unrolled() -> None:
    def nest(k: str) -> str:
        return f"""kernel @k(in %x: f32[768], in %w: i32[64, 96]{{1, 0}}, out %y: f32[64]) {{
          for %i in 0..64 tile 16 lanes 16 {{
            %s = reduce add %k in 0..768{k} {{ yield %x[%k] * cast<f32>(%w[%i, %k//8] << cast<i32>(index(%k%8) * 4)) }}
            store %s, %y[%i] }} }}"""

    check_pass("unroll", before=nest(""), after=nest(" unroll 8"))
    wide = nest("").replace("tile 16 lanes", "tile 64 lanes")
    check_pass("unroll{max-period=16,partial-factor=1}", unchanged=wide)


LOOKUP = """kernel @lookup(in %x: f32[40, 64], in %k: i64[{columns}], out %y: f32[40, {columns}]) {{
  parallel %i in 0..40 {{
    {kind} %j in 0..{columns}{unroll} {{
      %r = %k[%j]
      check %r in 0..64
      store %x[%i, %r], %y[%i, %j]
    }}
  }}
}}"""


@pytest.mark.parametrize(("columns", "unroll"), [(2, 2), (9, 9), (14, 9), (1000, 9)])
def test_innermost_loops_of_scalars(columns: int, unroll: int) -> None:
    before, after = (LOOKUP.format(columns=columns, kind="for", unroll=u) for u in ("", f" unroll {unroll}"))
    check_pass("unroll", before=before, after=after)


def test_loops_of_scalars_that_stay() -> None:
    """A single step, those of an outer loop, many operations, and what is part of a tile."""
    check_pass("unroll", unchanged=LOOKUP.format(columns=1, kind="for", unroll=""))
    check_pass("unroll", unchanged=LOOKUP.format(columns=8, kind="for", unroll=" tile 8 lanes 16"))
    check_pass("unroll{max-vectors=3}", unchanged=LOOKUP.format(columns=8, kind="for", unroll=""))
    check_pass("unroll", unchanged=LOOKUP.format(columns=8, kind="for", unroll="").replace("0..40 {", "0..40 tile 4 {"))


def test_a_shared_loop_of_scalars_is_tiled() -> None:
    """Threads take its iterations one by one; one whose steps depend on each other is unrolled."""
    copy = "kernel @k(in %x: f32[40], out %y: f32[40]) {{ {loop} {{ store %x[%i], %y[%i] }} }}"
    check_pass(
        "unroll", before=copy.format(loop="parallel %i in 0..40"), after=copy.format(loop="parallel %i in 0..40 tile 8")
    )
    check_pass("unroll", before=copy.format(loop="for %i in 0..40"), after=copy.format(loop="for %i in 0..40 unroll 9"))
