"""The tuner on kernels for GPUs: the clock is made up, the choices are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from compiler.codegen.backend import target_by_name
from compiler.driver.autotune import Tuner
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.tile.kernel import Kernel, stmt_ranges, walk
from compiler.passes.base import Context
from compiler.runtime.cache import ObjectCache

PROGRAM = """program {
  input %x: f16[1024, 512]  input %w: f16[1024, 512]  output %y: f16[1024, 1024]
  kernel @matmul(in %x: f16[1024, 512], in %w: f16[1024, 512], out %y: f16[1024, 1024]) {
    parallel %i in 0..1024 { parallel %j in 0..1024 {
      %s = reduce add %k in 0..512 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      store cast<f16>(%s), %y[%i, %j]
    } }
  }
  launch @matmul(%x, %w, %y)
}"""


def tiles(kernel: Kernel) -> dict[str, int]:
    return {r.var: r.tile for s in walk(kernel.body) for r in stmt_ranges(s)}


def tuned(folder: Path, seconds: Callable[[Kernel], float]) -> tuple[Kernel, str]:
    """The kernel that the tuner chooses by these times, and its remarks."""
    target = target_by_name("sm90")
    context = Context.for_target(target)

    def measure(kernels: Sequence[Kernel], cold_bytes: int) -> list[float]:
        return [seconds(k) for k in kernels]

    program = Tuner(target, ObjectCache(folder), measure).run(parse_program(PROGRAM), "gpu-dot,gpu-blocks", context)
    return program.kernels["matmul"], str(context.remarks)


def test_the_fastest_of_the_best_blocks_is_taken(tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    def seconds(kernel: Kernel) -> float:
        seen.append(tiles(kernel))
        return 1e-3 if tiles(kernel) == seen[0] else 1e-4 * max(tiles(kernel).values()) / 16

    kernel, remarks = tuned(tmp_path, seconds)
    assert len({tuple(t.values()) for t in seen}) > 2  # the first choice and several others
    assert tiles(kernel) != seen[0]
    assert "gpu-dot{" in remarks


def test_the_cost_model_decides_where_nothing_is_faster(tmp_path: Path) -> None:
    first = tiles(tuned(tmp_path / "a", lambda k: 1e-3)[0])
    kernel, remarks = tuned(tmp_path / "b", lambda k: 1e-3 if tiles(k) == first else 2e-3)
    assert tiles(kernel) == first
    assert "the cost model's choice stays" in remarks
