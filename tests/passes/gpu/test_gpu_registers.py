"""gpu-registers: limits for the threads of matrix products."""

from __future__ import annotations

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

TEXT = """kernel @matmul(in %x: f32[128, 64], in %w: f32[128, 64], out %y: f32[128, 128]) warps WARPS {
  parallel %i in 0..128 tile SIDE {
    parallel %j in 0..128 tile SIDE {
      %s = reduce add %k in 0..64 tile 16 stages 4 { yield %x[%i, %k] * %w[%j, %k] }
      store %s, %y[%i, %j]
    }
  }
}"""


def matmul(side: int, schedule: str) -> str:
    return TEXT.replace("SIDE", str(side)).replace("WARPS", schedule)


def test_blocks_beside_each_other_share_the_register_file() -> None:
    check_pass(
        "gpu-registers",
        before=matmul(64, "4"),
        after=matmul(64, "4 max_registers 128"),
        remark="at most 128 registers, for 4 blocks on a multiprocessor",
        machine=GPU(multiprocessors=1),
    )


def test_a_small_product_has_fewer_blocks_than_fit() -> None:
    check_pass(
        "gpu-registers",
        before=matmul(64, "4"),
        after=matmul(64, "4 max_registers 255"),
        remark="at most 255 registers, for 1 blocks on a multiprocessor",
    )


def test_a_block_that_is_alone_has_what_a_thread_may_have() -> None:
    check_pass("gpu-registers", before=matmul(128, "8"), after=matmul(128, "8 max_registers 255"))


def test_assemblers_that_take_no_limit() -> None:
    check_pass("gpu-registers", unchanged=matmul(64, "4"), machine=GPU(limits_registers=False))


def test_kernels_without_products() -> None:
    text = "kernel @relu(in %x: f32[64], out %y: f32[64]) { parallel %i in 0..64 { store max(%x[%i], 0), %y[%i] } }"
    check_pass("gpu-registers", unchanged=text)


WINDOWS = """kernel @sums(in %x: f16[PROGRAMS, 40], out %y: f16[PROGRAMS, 32]) warps 4 LIMIT {
  parallel %i in 0..PROGRAMS {
    parallel %j in 0..32 tile 32 {
      %s = reduce add %k in 0..EXTENT { yield cast<f32>(%x[%i, %j + %k]) }
      store cast<f16>(%s), %y[%i, %j]
    }
  }
}"""


def windows(programs: int, limit: str = "", extent: int = 3) -> str:
    return WINDOWS.replace("PROGRAMS", str(programs)).replace("LIMIT", limit).replace("EXTENT", str(extent))


def test_loads_of_windows_that_wait_together_have_what_a_thread_may_have() -> None:
    check_pass(
        "gpu-registers",
        before=windows(4),
        after=windows(4, "max_registers 255"),
        remark="at most 255 registers, for 2 blocks on a multiprocessor",
        machine=GPU(multiprocessors=2),
    )


def test_many_blocks_or_long_sums_have_no_limit() -> None:
    check_pass("gpu-registers", unchanged=windows(6), machine=GPU(multiprocessors=2))
    check_pass("gpu-registers", unchanged=windows(4, extent=9), machine=GPU(multiprocessors=2))
