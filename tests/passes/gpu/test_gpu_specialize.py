"""gpu-specialize: warps that load, warps that multiply."""

from __future__ import annotations

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

BLACKWELL = GPU(specialized_warps=4, multiprocessors=4)

TEXT = """kernel @matmul(in %x: f16[128, 64] descriptor, in %w: f16[128, 64]RHS, out %y: f16[128, 128]) warps 4 SCHEDULE {
  parallel %i in 0..128 tile 64 {
    parallel %j in 0..128 tile 64 {
      %s = reduce add %k in 0..64 tile 16 stages 4 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      store cast<f16>(%s), %y[%i, %j]
    }
  }
}"""


def matmul(schedule: str, rhs: str = " descriptor") -> str:
    return TEXT.replace("SCHEDULE", schedule).replace("RHS", rhs)


def test_persistent_products_of_boxes() -> None:
    check_pass(
        "gpu-specialize",
        before=matmul("persistent 4"),
        after=matmul("persistent 4 warp_specialized"),
        remark="4 more warps load and multiply",
        machine=BLACKWELL,
    )


def test_operands_that_threads_copy() -> None:
    check_pass("gpu-specialize", unchanged=matmul("persistent 4", ""), machine=BLACKWELL)


def test_programs_of_one_block() -> None:
    check_pass("gpu-specialize", unchanged=matmul(""), machine=BLACKWELL)


def test_targets_without_specialized_warps() -> None:
    check_pass("gpu-specialize", unchanged=matmul("persistent 4"), machine=GPU(multiprocessors=4))
