"""Lowering asynchronous copies to loops, for targets without them."""

from __future__ import annotations

import pytest

from compiler.codegen.backend import backend_of, target_by_name
from compiler.codegen.llvm.emit import emit_kernel
from compiler.codegen.triton.emit import emit_triton
from compiler.errors import TilewrightError
from compiler.ir.text.tile_parser import parse_kernel
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import parse_pipeline
from compiler.testing.checks import check_pass

ROWS = """kernel @rows(size n in 2..9 hint 4, in %x: f32[n, 32], out %y: f32[n, 32]) {
  local %s: f32[2, 32]
  copy_async %x[0, 0] -> %s[0, 0] size 1, 32
  for %c in 0..n - 1 {
    copy_async %x[%c + 1, 0] -> %s[(%c + 1)%2, 0] size 1, 32
    wait %s pending 1
    for %j in 0..32 { store -%s[%c%2, %j], %y[%c, %j] }
  }
  wait %s
  for %j in 0..32 { store -%s[(n + 1)%2, %j], %y[n - 1, %j] }
}"""


def test_copies_become_loops() -> None:
    check_pass(
        "lower-async-copies",
        before=ROWS,
        after="""kernel @rows(size n in 2..9 hint 4, in %x: f32[n, 32], out %y: f32[n, 32]) {
          local %s: f32[2, 32]
          for %c_1 in 0..1 { for %c_2 in 0..32 { store %x[%c_1, %c_2], %s[%c_1, %c_2] } }
          for %c in 0..n - 1 {
            for %c_3 in 0..1 { for %c_4 in 0..32 { store %x[%c + %c_3 + 1, %c_4], %s[%c_3 + (%c + 1)%2, %c_4] } }
            for %j in 0..32 { store -%s[%c%2, %j], %y[%c, %j] }
          }
          for %j in 0..32 { store -%s[(n + 1)%2, %j], %y[n - 1, %j] }
        }""",
    )


def test_kernels_without_copies_are_left_alone() -> None:
    kernel = parse_kernel("kernel @k(in %x: f32[8], out %y: f32[8]) { for %i in 0..8 { store %x[%i], %y[%i] } }")
    assert run_pipeline(kernel, "lower-async-copies") is kernel


@pytest.mark.parametrize("name", ["x86-64-v3", "sm90"])
def test_pipelines_of_targets_without_copies_begin_with_it(name: str) -> None:
    """But for a pass that is left out unless the user asks for it."""
    pipelines = backend_of(target_by_name(name)).pipelines
    for passes in (pipelines.program, pipelines.unfused_program):
        names = (p.name for p in parse_pipeline(passes))
        assert next(n for n in names if n != "tf32-products") == "lower-async-copies"
    assert not target_by_name(name).async_copies


def test_code_generators_refuse_copies() -> None:
    kernel = parse_kernel(
        ROWS.replace("n - 1", "7").replace("n + 1", "1").replace("size n in 2..9 hint 4, ", "").replace("[n,", "[8,")
    )
    with pytest.raises(TilewrightError, match="run lower-async-copies"):
        emit_kernel(kernel, target_by_name("x86-64-v3"))
    with pytest.raises(TilewrightError, match="run lower-async-copies"):
        emit_triton(kernel)
