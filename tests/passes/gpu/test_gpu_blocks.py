"""gpu-blocks: everything that no other pass made a block."""

from __future__ import annotations

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass


def check_tiles(text: str, warps: int = 4, multiprocessors: int = 132, **tiles: int) -> None:
    """Check the warps, and the tiles that the pass gives to loops named in capitals."""
    before, after = text.replace("WARPS", ""), text.replace("WARPS", f" warps {warps}")
    for name, n in tiles.items():
        before, after = before.replace(name, ""), after.replace(name, f" tile {n}" if n > 1 else "")
    check_pass(
        "gpu-blocks", before=before, after=after, remark=f"{warps} warps", machine=GPU(multiprocessors=multiprocessors)
    )


def test_elementwise_blocks_follow_memory() -> None:
    """A thread has 16 bytes, if there are enough of them for all multiprocessors."""
    check_tiles(
        """kernel @double(in %x: f32[4, 512], out %y: f32[4, 512])WARPS {
          parallel %i in 0..4OUTER { parallel %j in 0..512INNER { store %x[%i, %j] * 2.0, %y[%i, %j] } }
        }""",
        multiprocessors=1,
        OUTER=1,
        INNER=512,
    )


def test_few_elements_are_shared_by_more_programs() -> None:
    check_tiles(
        """kernel @double(in %x: f32[50, 100], out %y: f32[50, 100])WARPS {
          parallel %i in 0..50OUTER { parallel %j in 0..100INNER { store %x[%i, %j] * 2.0, %y[%i, %j] } }
        }""",
        OUTER=1,
        INNER=128,
    )


def test_rows_are_reduced_in_a_block() -> None:
    check_tiles(
        """kernel @sum(in %x: f32[50, 100], out %y: f32[50])WARPS {
          parallel %i in 0..50OUTER {
            %s = reduce add %k in 0..100INNER { yield %x[%i, %k] }
            store %s, %y[%i]
          }
        }""",
        OUTER=1,
        INNER=128,
    )


def test_columns_are_reduced_side_by_side() -> None:
    check_tiles(
        """kernel @sum(in %x: f32[50, 100], out %y: f32[100])WARPS {
          parallel %i in 0..100COLUMNS {
            %s = reduce add %k in 0..50DEPTH { yield %x[%k, %i] }
            store %s, %y[%i]
          }
        }""",
        COLUMNS=8,
        DEPTH=16,
    )


def test_a_transpose_has_a_line_of_both_sides() -> None:
    check_tiles(
        """kernel @transpose(in %x: f16[70, 66], in %b: f16[66], out %y: f16[66, 70])WARPS {
          parallel %i in 0..66OUTER { parallel %j in 0..70INNER { store %x[%j, %i] + %b[%i], %y[%i, %j] } }
        }""",
        warps=8,
        OUTER=64,
        INNER=64,
    )


def test_windows_stay_loops() -> None:
    check_tiles(
        """kernel @pool(in %x: f32[9, 22], out %y: f32[9, 20])WARPS {
          parallel %i in 0..9OUTER {
            parallel %j in 0..20INNER {
              %m = reduce max %k in 0..3 { yield %x[%i, %j + %k] }
              store %m, %y[%i, %j]
            }
          }
        }""",
        OUTER=4,
        INNER=32,
    )


def test_contractions_are_blocks_already() -> None:
    check_pass("gpu-blocks", unchanged="""kernel @matmul(in %x: f32[3, 5, 7], in %w: f32[3, 9, 7], out %y: f32[3, 5, 9]) warps 8 {
      parallel %b in 0..3 {
        parallel %i in 0..5 tile 16 {
          parallel %j in 0..9 tile 16 {
            %sum = reduce add %k in 0..7 tile 16 { yield %x[%b, %i, %k] * %w[%b, %j, %k] }
            store %sum, %y[%b, %i, %j]
          }
        }
      }
    }""")  # fmt: skip


def test_loops_that_bounds_depend_on_stay() -> None:
    """Parts of a row: one block cannot have reductions with different bounds."""
    check_tiles(
        """kernel @parts(in %x: f32[1536], out %y: f32[768]) WARPS {
          parallel %part in 0..768 {
            %s = reduce add %r in 2*%part..2*%part + 2 { yield %x[%r] }
            store %s, %y[%part]
          }
        }"""
    )


def test_a_vector_times_rows_of_a_matrix_reads_them_side_by_side() -> None:
    """Most of what is read is contiguous along the results, not along the sum."""
    check_tiles(
        """kernel @product(in %x: f32[64], in %w: f32[64, 512], out %y: f32[512])WARPS {
          parallel %j in 0..512OUTER {
            %s = reduce add %r in 0..64INNER { yield %x[%r] * %w[%r, %j] }
            store %s, %y[%j]
          }
        }""",
        OUTER=8,
        INNER=16,
    )


def test_windows_beside_each_other_are_part_of_the_block() -> None:
    check_tiles(
        """kernel @pool(in %x: f32[16, 64], out %y: f32[8, 32])WARPS {
          parallel %i in 0..8OUTER {
            parallel %j in 0..32INNER {
              %m = reduce max %k in 0..2, %l in 0..2WINDOW { yield %x[2*%i + %k, 2*%j + %l] }
              store %m, %y[%i, %j]
            }
          }
        }""",
        multiprocessors=1,
        OUTER=8,
        INNER=32,
        WINDOW=2,
    )
