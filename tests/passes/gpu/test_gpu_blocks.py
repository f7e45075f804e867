"""gpu-blocks: everything that no other pass made a block."""

from __future__ import annotations

from compiler.testing.checks import check_pass


def test_elementwise_blocks_follow_memory() -> None:
    text = """kernel @double(in %x: f32[50, 100], out %y: f32[50, 100]) {
      parallel %i in 0..50OUTER { parallel %j in 0..100INNER { store %x[%i, %j] * 2.0, %y[%i, %j] } }
    }"""
    after = text.replace("OUTER", " tile 8").replace("INNER", " tile 128")
    check_pass("gpu-blocks", before=text.replace("OUTER", "").replace("INNER", ""), after=after)


def test_rows_are_reduced_several_at_once() -> None:
    text = """kernel @sum(in %x: f32[50, 100], out %y: f32[50]) {
      parallel %i in 0..50ROWS {
        %s = reduce add %k in 0..100ROW { yield %x[%i, %k] }
        store %s, %y[%i]
      }
    }"""
    after = text.replace("ROWS", " tile 8").replace("ROW", " tile 128")
    check_pass("gpu-blocks", before=text.replace("ROWS", "").replace("ROW", ""), after=after)


def test_columns_are_reduced_side_by_side() -> None:
    text = """kernel @sum(in %x: f32[50, 100], out %y: f32[100]) {
      parallel %i in 0..100COLUMNS {
        %s = reduce add %k in 0..50DEPTH { yield %x[%k, %i] }
        store %s, %y[%i]
      }
    }"""
    after = text.replace("COLUMNS", " tile 64").replace("DEPTH", " tile 16")
    check_pass("gpu-blocks", before=text.replace("COLUMNS", "").replace("DEPTH", ""), after=after)


def test_windows_stay_loops() -> None:
    text = """kernel @pool(in %x: f32[9, 22], out %y: f32[9, 20]) {
      parallel %i in 0..9OUTER {
        parallel %j in 0..20INNER {
          %m = reduce max %k in 0..3 { yield %x[%i, %j + %k] }
          store %m, %y[%i, %j]
        }
      }
    }"""
    after = text.replace("OUTER", " tile 16").replace("INNER", " tile 32")
    check_pass("gpu-blocks", before=text.replace("OUTER", "").replace("INNER", ""), after=after)


def test_contractions_are_blocks_already() -> None:
    check_pass("gpu-blocks", unchanged="""kernel @matmul(in %x: f32[3, 5, 7], in %w: f32[3, 9, 7], out %y: f32[3, 5, 9]) {
      parallel %b in 0..3 {
        parallel %i in 0..5 tile 16 {
          parallel %j in 0..9 tile 16 {
            %sum = reduce add %k in 0..7 tile 16 { yield %x[%b, %i, %k] * %w[%b, %j, %k] }
            store %sum, %y[%b, %i, %j]
          }
        }
      }
    }""")  # fmt: skip
