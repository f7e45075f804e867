"""gpu-split: reductions with programs of their own for parts of the sum."""

from __future__ import annotations

from compiler.cost.machine import GPU
from compiler.ir.text.tile_parser import parse_program
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.testing.checks import check_pass


def program(kernels: str, parts: str, launches: str) -> str:
    return f"program {{ input %a: f32[4, 64]  input %b: f32[4]  output %c: f32[4] {parts} {kernels} {launches} }}"


BEFORE = """kernel @k(in %x: f32[4, 64], in %b: f32[4], out %y: f32[4]) {
  parallel %i in 0..4 {
    %s = reduce add %r in 0..64 { yield %x[%i, %r] }
    store %s * %b[%i], %y[%i]
  }
}"""
FIRST = """kernel @k_parts(in %x: f32[4, 64], out %s.parts: f32[8, 4]) {
  parallel %r.part in 0..8 {
    parallel %i in 0..4 {
      %s = reduce add %r in 8*%r.part..8*%r.part + 8 { yield %x[%i, %r] }
      store %s, %s.parts[%r.part, %i]
    }
  }
}"""
SECOND = """kernel @k(in %b: f32[4], out %y: f32[4], in %s.parts: f32[8, 4]) {
  parallel %i in 0..4 {
    %s = reduce add %r.parts in 0..8 { yield %s.parts[%r.parts, %i] }
    store %s * %b[%i], %y[%i]
  }
}"""


def test_partial_sums_then_their_sum() -> None:
    check_pass(
        "gpu-split{parts=8}",
        before=program(BEFORE, "", "launch @k(%a, %b, %c)"),
        after=program(
            f"{SECOND} {FIRST}",
            "buffer %c.parts: f32[8, 4]",
            "launch @k_parts(%a, %c.parts)  launch @k(%b, %c, %c.parts)",
        ),
        remark="%r in 8 parts",
        idempotent=False,
    )


def test_the_cost_model_splits_where_multiprocessors_are_idle() -> None:
    launches = "launch @k(%a, %b, %c)"
    text = program(BEFORE, "", launches).replace("64", str(1 << 22))
    context = Context(GPU())
    split = run_pipeline(parse_program(text), "gpu-split", context)
    assert set(split.kernels) == {"k", "k_parts"}
    assert any("parts: " in str(r) for r in context.remarks)


def test_a_kernel_with_enough_programs_stays() -> None:
    text = program(BEFORE, "", "launch @k(%a, %b, %c)").replace("[4", "[262144").replace("0..4 ", "0..262144 ")
    program_ = parse_program(text)
    assert run_pipeline(program_, "gpu-split", Context(GPU())) is program_


def test_a_kernel_that_stores_in_its_reduction_stays() -> None:
    check_pass("gpu-split{parts=8}", unchanged="""program { input %a: f32[64]  output %c: f32[64]
      kernel @k(in %x: f32[64], out %y: f32[64]) {
        parallel %i in 0..1 {
          local %row: f32[64]
          %s = reduce add %r in 0..64 { store %x[%r], %row[%r]  yield %x[%r] }
          for %j in 0..64 { store %row[%j] / %s, %y[%j] }
        }
      }
      launch @k(%a, %c) }""")  # fmt: skip


def dynamic(high: int) -> str:
    text = program(BEFORE, "", "launch @k(%a, %b, %c)").replace("f32[4, 64]", "f32[n, 64]").replace("f32[4]", "f32[n]")
    text = (
        text.replace("0..4 {", "0..n {").replace("@k(in", f"@k(size n in 0..{high} hint 4, in").replace("64", "65536")
    )
    return text.replace("program {", f"program {{ size n in 0..{high} hint 4 ", 1)


def test_dynamic_sizes_split_where_all_partial_results_fit_the_cache() -> None:
    split = run_pipeline(parse_program(dynamic(50)), "gpu-split", Context(GPU()))
    partial = split.buffers["c.parts"].shape
    assert set(split.kernels) == {"k", "k_parts"}
    assert isinstance(partial[0], int)
    assert str(partial[1]) == "n"
    whole = run_pipeline(parse_program(dynamic(1 << 30)), "gpu-split", Context(GPU()))
    assert set(whole.kernels) == {"k"}
