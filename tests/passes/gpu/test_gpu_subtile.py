"""gpu-subtile: what follows a product in parts of its columns."""

from __future__ import annotations

from dataclasses import replace

from compiler.cost.machine import GPU
from compiler.testing.checks import check_pass

TEXT = """kernel @f(in %x: f16[256, 64], in %w: f16[256, 64], in %b: f16[256], in %r: f16[256, 256], out %y: f16[256, 256]) warps 8 SCHEDULE {
  parallel %i in 0..256 tile 128 {
    parallel %j in 0..256 tile COLUMNS {
      %s = reduce add %k in 0..64 tile 64 { yield cast<f32>(%x[%i, %k]) * cast<f32>(%w[%j, %k]) }
      %v = cast<f32>(cast<f16>(%s + cast<f32>(%b[%j])))
      store cast<f16>(RESULT), %y[%i, %j]
    }
  }
}"""

GELU = "0.5 * %v * (1.0 + erf(%v * 0.7))"
RESIDUAL = "cast<f32>(%r[%i, %j])"


def product(result: str, schedule: str = "", columns: int = 256) -> str:
    return TEXT.replace("RESULT", result).replace("SCHEDULE", schedule).replace("COLUMNS", str(columns))


def test_code_that_branches_between_many_live_values() -> None:
    check_pass(
        "gpu-subtile",
        before=product(GELU),
        after=product(GELU, "subtiles 2"),
        remark="268 registers of 6 bytes for each result, 236 in 2 parts",
    )


def test_a_residual_beside_them_takes_more_parts() -> None:
    result = f"{GELU} + {RESIDUAL}"
    check_pass("gpu-subtile", before=product(result), after=product(result, "subtiles 4"))


def test_one_result_after_another_needs_few_registers() -> None:
    """No operation branches, so that the assembler finishes a result before the next; or the results are few."""
    check_pass("gpu-subtile", unchanged=product("0.5 * %v * (1.0 + tanh(%v * 0.7))"))
    check_pass("gpu-subtile", unchanged=product(GELU, columns=128))


def test_fewer_registers() -> None:
    """Blocks that run side by side leave less to a thread."""
    check_pass(
        "gpu-subtile",
        before=product(GELU, "max_registers 160", 128),
        after=product(GELU, "max_registers 160 subtiles 2", 128),
    )


def test_threads_with_results_in_some_columns_only() -> None:
    """Operands in registers, or two groups of warps beside each other: a part would leave threads idle."""
    check_pass("gpu-subtile", unchanged=product(GELU), machine=replace(GPU(), loads_matrices_from_shared=False))
    text = product(GELU).replace("tile 128", "tile 64").replace("warps 8", "warps 8 max_registers 64")
    check_pass("gpu-subtile", unchanged=text)
