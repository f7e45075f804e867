"""gpu-order: programs that run together read the same blocks."""

from __future__ import annotations

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

SMALL_CACHE = GPU(l2=1024, multiprocessors=4)

LOOPS = """kernel @matmul(in %x: f32[ROWS, 8], in %w: f32[64, 8], out %y: f32[ROWS, 64]) {
  OUTER
      %s = reduce add %k in 0..8 tile 8 { yield %x[%i, %k] * %w[%j, %k] }
      store %s, %y[%i, %j]
  CLOSE
}"""


def matmul(rows: int, outer: str) -> str:
    return LOOPS.replace("ROWS", str(rows)).replace("OUTER", outer).replace("CLOSE", "}" * outer.count("{"))


def test_rows_go_in_groups() -> None:
    check_pass(
        "gpu-order",
        before=matmul(64, "parallel %i in 0..64 tile 8 { parallel %j in 0..64 tile 8 {"),
        after=matmul(
            64,
            """parallel %i.group in 0..4 { parallel %j in 0..64 tile 8 {
               parallel %i in %i.group*16..%i.group*16 + 16 tile 8 {""",
        ),
        remark="%i in groups of 2 blocks: 0.0 MB for a wave",
        machine=SMALL_CACHE,
        idempotent=False,
    )


def test_columns_go_in_groups_where_none_divides_the_rows() -> None:
    check_pass(
        "gpu-order",
        before=matmul(20, "parallel %i in 0..20 tile 8 { parallel %j in 0..64 tile 8 {"),
        after=matmul(
            20,
            """parallel %j.group in 0..4 { parallel %i in 0..20 tile 8 {
               parallel %j in %j.group*16..%j.group*16 + 16 tile 8 {""",
        ),
        machine=SMALL_CACHE,
        idempotent=False,
    )


def test_operands_that_fit_in_the_cache_need_no_order() -> None:
    check_pass("gpu-order", unchanged=matmul(64, "parallel %i in 0..64 tile 8 { parallel %j in 0..64 tile 8 {"))


def test_columns_go_in_groups_where_rows_are_dynamic() -> None:
    text = LOOPS.replace("kernel @matmul(", "kernel @matmul(size n in 1..4096 hint 64, ").replace("ROWS", "n")

    def nest(outer: str) -> str:
        return text.replace("OUTER", outer).replace("CLOSE", "}" * outer.count("{"))

    check_pass(
        "gpu-order",
        before=nest("parallel %i in 0..n tile 8 { parallel %j in 0..64 tile 8 {"),
        after=nest(
            """parallel %j.group in 0..4 { parallel %i in 0..n tile 8 {
               parallel %j in %j.group*16..%j.group*16 + 16 tile 8 {"""
        ),
        remark="%j in groups of 2 blocks",
        machine=SMALL_CACHE,
        idempotent=False,
    )
