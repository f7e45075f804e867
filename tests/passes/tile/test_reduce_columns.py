"""reduce-columns: rows of each column first, then the columns of a group."""

from __future__ import annotations

from compiler.cost.machine import Machine
from compiler.testing.checks import check_pass

SMALL_CACHE = Machine(l1=192, threads=2)

STATISTICS = """kernel @k(in %x: f32[3, 5, 12], out %y: f32[3, 4]) {
  parallel %n in 0..3 { parallel %g in 0..4 {
    %s = reduce add %k in 0..3, %r in 0..5 { yield %x[%n, %r, %g*3 + %k] }
    %m = %s * 0.5
    %v = reduce add %l in 0..3, %q in 0..5 {
      %d = %x[%n, %q, %g*3 + %l] - %m
      yield %d * %d
    }
    store %v + %m, %y[%n, %g]
  } } }"""


def test_sums_of_groups_of_columns_and_of_squares_around_their_mean() -> None:
    check_pass(
        "reduce-columns",
        before=STATISTICS,
        after="""kernel @k(in %x: f32[3, 5, 12], out %y: f32[3, 4]) {
  parallel %n in 0..3 {
    local %s.columns: f32[12]
    local %v.columns: f32[12]
    local %m.each: f32[4]
    parallel %g in 0..12 {
      %s.column = reduce add %r in 0..5 { yield %x[%n, %r, %g] }
      store %s.column, %s.columns[%g]
    }
    parallel %g_1 in 0..4 {
      %s = reduce add %k in 0..3 { yield %s.columns[%g_1*3 + %k] }
      %m = %s * 0.5
      store %m, %m.each[%g_1]
    }
    parallel %g_2 in 0..12 {
      %m_1 = %m.each[%g_2//3]
      %v.column = reduce add %q in 0..5 {
        %d = %x[%n, %q, %g_2] - %m_1
        yield %d * %d
      }
      store %v.column, %v.columns[%g_2]
    }
    parallel %g_3 in 0..4 {
      %m_2 = %m.each[%g_3]
      %v = reduce add %l in 0..3 { yield %v.columns[%g_3*3 + %l] }
      store %v + %m_2, %y[%n, %g_3]
    }
  }
}""",
        machine=SMALL_CACHE,
        remark="rows of %s, %v reduced before columns",
    )


def test_threads_share_the_groups_of_one_image_in_blocks() -> None:
    check_pass(
        "reduce-columns",
        before="""kernel @k(in %x: f32[8, 12], out %y: f32[4]) {
          parallel %g in 0..4 {
            %s = reduce max %r in 0..8, %k in 0..3 { yield %x[%r, %g*3 + %k] }
            store %s, %y[%g]
          } }""",
        after="""kernel @k(in %x: f32[8, 12], out %y: f32[4]) {
  parallel %g in 0..2 {
    local %s.columns: f32[6]
    parallel %g.group in 0..6 {
      %s.column = reduce max %r in 0..8 { yield %x[%r, %g*6 + %g.group] }
      store %s.column, %s.columns[%g.group]
    }
    parallel %g.group_1 in 0..2 {
      %s = reduce max %k in 0..3 { yield %s.columns[%g.group_1*3 + %k] }
      store %s, %y[%g*2 + %g.group_1]
    }
  }
}""",
        machine=SMALL_CACHE,
    )


def test_rows_that_a_cache_holds_and_other_groups_stay() -> None:
    check_pass("reduce-columns", unchanged=STATISTICS, machine=Machine(l1=241, threads=2))
    for index in ("%r, %k*4 + %g", "%g*3 + %k, %r"):
        check_pass(
            "reduce-columns",
            unchanged=f"""kernel @k(in %x: f32[12, 12], out %y: f32[4]) {{
              parallel %g in 0..4 {{
                %s = reduce add %k in 0..3, %r in 0..12 {{ yield %x[{index}] }}
                store %s, %y[%g]
              }} }}""",
            machine=SMALL_CACHE,
        )


def test_groups_that_need_a_buffer_of_their_own_stay() -> None:
    check_pass(
        "reduce-columns",
        unchanged="""kernel @k(in %x: f32[12, 12], out %y: f32[4]) {
          parallel %g in 0..4 {
            local %t: f32[]
            %s = reduce add %k in 0..3, %r in 0..12 { yield %x[%r, %g*3 + %k] }
            store %s, %t[]
            store %t[] * 2.0, %y[%g]
          } }""",
        machine=SMALL_CACHE,
    )
