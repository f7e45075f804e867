"""distribute-bindings: values of columns before the loop over rows."""

from __future__ import annotations

from compiler.cost.machine import Machine
from compiler.testing.checks import check_pass

SMALL_CACHES = Machine(l1=256, l2=1024, threads=2)


SUMS = """kernel @k(in %x: f32[{images}, {rows}, 12], out %y: f32[{images}, {rows}, 12]) {{
  parallel %n in 0..{images} {{ parallel %c in 0..12 {{
    %s = reduce add %q in 0..{rows} {{ yield %x[%n, %q, %c] }}
    parallel %r in 0..{rows} {{ store %x[%n, %r, %c] * %s, %y[%n, %r, %c] }}
  }} }} }}"""


def columns(bindings: str, value: str, rows: int = 10) -> str:
    return f"""kernel @k(in %x: f32[{rows}, 12], in %s: f32[4], out %y: f32[{rows}, 12]) {{
      parallel %c in 0..12 {{
        {bindings}
        parallel %r in 0..{rows} {{ store {value}, %y[%r, %c] }}
      }} }}"""


def test_factors_of_columns_are_computed_before_the_rows() -> None:
    check_pass(
        "distribute-bindings",
        before=columns("%f = rsqrt(abs(%s[%c//3]) + 1.0)", "(%x[%r, %c] - %s[%c//3]) * %f"),
        after="""kernel @k(in %x: f32[10, 12], in %s: f32[4], out %y: f32[10, 12]) {
  local %f.each: f32[12]
  local %s.column.each: f32[12]
  for %c in 0..12 {
    %f = rsqrt(abs(%s[%c//3]) + 1.0)
    %s.column = %s[%c//3]
    store %f, %f.each[%c]
    store %s.column, %s.column.each[%c]
  }
  parallel %r in 0..10 {
    parallel %c_1 in 0..12 {
      %f_1 = %f.each[%c_1]
      %s.column_1 = %s.column.each[%c_1]
      store (%x[%r, %c_1] - %s.column_1) * %f_1, %y[%r, %c_1]
    }
  }
}""",
        machine=SMALL_CACHES,
        remark="values of %c bound before the loop over %r",
    )


def test_reductions_are_distributed_where_the_second_level_cache_does_not_hold_their_rows() -> None:
    check_pass(
        "distribute-bindings",
        before=SUMS.format(rows=24, images=2),
        after="""kernel @k(in %x: f32[2, 24, 12], out %y: f32[2, 24, 12]) {
  parallel %n in 0..2 {
    local %s.each: f32[12]
    for %c in 0..12 {
      %s = reduce add %q in 0..24 { yield %x[%n, %q, %c] }
      store %s, %s.each[%c]
    }
    parallel %r in 0..24 {
      parallel %c_1 in 0..12 {
        %s_1 = %s.each[%c_1]
        store %x[%n, %r, %c_1] * %s_1, %y[%n, %r, %c_1]
      }
    }
  }
}""",
        machine=SMALL_CACHES,
    )
    check_pass("distribute-bindings", unchanged=SUMS.format(rows=20, images=2), machine=SMALL_CACHES)


def test_threads_do_not_repeat_reductions_of_the_columns_that_they_share() -> None:
    check_pass("distribute-bindings", unchanged=SUMS.format(rows=24, images=1), machine=SMALL_CACHES)


def test_loops_without_bindings_and_rows_that_a_cache_holds_stay() -> None:
    check_pass("distribute-bindings", unchanged=columns("", "%x[%r, %c] * 2.0"), machine=SMALL_CACHES)
    check_pass("distribute-bindings", unchanged=columns("%f = %s[%c//3]", "%x[%r, %c] * %f", 5), machine=SMALL_CACHES)


def test_columns_that_lie_across_memory_stay() -> None:
    check_pass(
        "distribute-bindings",
        unchanged="""kernel @k(in %x: f32[12, 12], in %s: f32[12], out %y: f32[12, 12]) {
          parallel %c in 0..12 {
            %f = exp(%s[%c])
            parallel %r in 0..12 { store %x[%c, %r] * %f, %y[%c, %r] }
          } }""",
        machine=SMALL_CACHES,
    )


def test_loops_that_fill_a_buffer_are_no_bindings() -> None:
    check_pass(
        "distribute-bindings",
        unchanged="""kernel @k(in %x: f32[12, 12], scratch %t: f32[12, 12], out %y: f32[12, 12]) {
          parallel %c in 0..12 {
            parallel %q in 0..12 { store exp(%x[%q, %c]), %t[%c, %q] }
            parallel %r in 0..12 { store %t[%c, %r], %y[%r, %c] }
          } }""",
        machine=SMALL_CACHES,
    )
