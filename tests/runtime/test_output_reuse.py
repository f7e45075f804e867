"""Intermediates that are computed where an output will lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from compiler.codegen.llvm.targets import host_target
from compiler.ir.text.tile_parser import parse_program
from compiler.ir.text.tile_printer import print_program
from compiler.runtime.cpu_executable import CPUExecutable
from compiler.runtime.memory import in_place_pairs
from compiler.runtime.output_reuse import reuse_outputs

KERNELS = """
  kernel @double(in %a: f32[64], out %b: f32[64]) {
    for %i in 0..64 { store %a[%i] * 2.0, %b[%i] }
  }
  kernel @add(in %a: f32[64], in %b: f32[64], out %c: f32[64]) {
    for %i in 0..64 { store %a[%i] + %b[%i], %c[%i] }
  }
  kernel @reverse(in %a: f32[64], out %b: f32[64]) {
    for %i in 0..64 { store %a[63 - %i], %b[%i] }
  }
"""


def program(steps: str, buffers: str = "output %y: f32[64] buffer %t: f32[64] buffer %u: f32[64]") -> str:
    return f"program {{ input %x: f32[64] {buffers} {KERNELS} {steps} }}"


def steps_after(text: str) -> list[str]:
    before = parse_program(text)
    after = reuse_outputs(before, in_place_pairs(before))
    parse_program(print_program(after))
    return [" ".join(line.split()) for line in print_program(after).splitlines() if line.strip().startswith("launch")]


def test_a_chain_is_computed_in_the_output() -> None:
    text = program("launch @double(%x, %t) launch @double(%t, %u) launch @add(%u, %x, %y)")
    assert steps_after(text) == ["launch @double(%x, %y)", "launch @double(%y, %y)", "launch @add(%y, %x, %y)"]


def test_intermediates_of_another_shape() -> None:
    """Rows are stored where the flat result will lie."""
    kernels = """
      kernel @rows(in %a: f32[64], out %b: f32[8, 8]) {
        for %i in 0..8 { for %j in 0..8 { store %a[%i*8 + %j] * 2.0, %b[%i, %j] } } }
      kernel @flat(in %a: f32[8, 8], out %b: f32[64]) {
        for %i in 0..8 { for %j in 0..8 { store %a[%i, %j] * 2.0, %b[%i*8 + %j] } } }"""
    text = f"""program {{ input %x: f32[64] output %y: f32[64] buffer %t: f32[8, 8] {kernels}
      launch @rows(%x, %t) launch @flat(%t, %y) }}"""
    assert steps_after(text) == ["launch @rows(%x, %y)", "launch @flat(%y, %y)"]
    x = torch.arange(64.0)
    (y,) = CPUExecutable(parse_program(text), host_target())([x])
    assert torch.equal(y, 4 * x)


@pytest.mark.parametrize(
    "steps",
    [
        "launch @double(%x, %t) launch @reverse(%t, %y)",
        "launch @double(%x, %t) launch @double(%t, %y) launch @reverse(%t, %z)",
        "launch @double(%x, %y) launch @double(%x, %t) launch @add(%t, %y, %y)",
    ],
    ids=["read in another order", "read later", "output in use"],
)
def test_other_intermediates_stay(steps: str) -> None:
    text = program(steps, "output %y: f32[64] output %z: f32[64] buffer %t: f32[64]")
    before = parse_program(text)
    assert reuse_outputs(before, in_place_pairs(before)) == before


def test_two_outputs_may_be_intermediates_of_each_other() -> None:
    """An output that a later kernel reads is kept."""
    text = program("launch @double(%x, %y) launch @double(%y, %z)", "output %y: f32[64] output %z: f32[64]")
    assert steps_after(text) == ["launch @double(%x, %y)", "launch @double(%y, %z)"]


def test_results_and_workspace() -> None:
    executable = CPUExecutable(
        parse_program(program("launch @double(%x, %t) launch @double(%t, %u) launch @add(%u, %x, %y)")), host_target()
    )
    x = torch.arange(64, dtype=torch.float32)
    np.testing.assert_array_equal(executable([x])[0], 5 * x)
    assert executable.memory_plan.size == 0
