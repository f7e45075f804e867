"""gpu-persistent: programs that compute one block after another."""

from __future__ import annotations

from dataclasses import replace

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

FEW_PROCESSORS = GPU(multiprocessors=2, resident_blocks=1, block_shared_bytes=1 << 15)

TEXT = """kernel @matmul(in %x: f16[256, 64], in %w: f16[256, 64], out %y: f16[256, 256]) warps 4 PERSISTENT {
  parallel %i in 0..256 tile 64 {
    parallel %j in 0..256 tile 64 {
      %s = reduce add %k in 0..64 tile 16 stages STAGES { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      store cast<f16>(%s), %y[%i, %j]
    }
  }
}"""


def matmul(persistent: str = "", stages: int = 4) -> str:
    return TEXT.replace("PERSISTENT", persistent).replace("STAGES", str(stages))


def test_more_blocks_than_run_at_once() -> None:
    check_pass(
        "gpu-persistent",
        before=matmul(),
        after=matmul("persistent 2"),
        remark="2 programs for 16 blocks",
        machine=FEW_PROCESSORS,
    )


def test_blocks_that_run_at_once_need_no_loop() -> None:
    check_pass("gpu-persistent", unchanged=matmul(), machine=GPU(multiprocessors=16))


def test_results_take_the_place_of_a_stage() -> None:
    """Seven stages take 28 KiB, six and the results 32."""
    check_pass(
        "gpu-persistent",
        before=matmul(stages=7),
        after=matmul("persistent 2", stages=6),
        machine=FEW_PROCESSORS,
    )


def test_operands_in_registers_leave_none() -> None:
    check_pass("gpu-persistent", unchanged=matmul(), machine=replace(FEW_PROCESSORS, loads_matrices_from_shared=False))
