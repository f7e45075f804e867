"""Local buffers as values: which kernels address them otherwise."""

from __future__ import annotations

import pytest

from compiler.analysis.local_blocks import addressing_problem
from compiler.codegen.backend import target_by_name
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel
from compiler.options import Options
from compiler.pipeline import lower_and_schedule

FILL = "local %t: f32[8] for %k in 0..8 { store exp(%x[%k]), %t[%k] }"


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        ("for %i in 0..8 { store %t[%i], %y[%i] }", ""),
        ("for %i in 0..7 { store %t[%i], %y[%i] }", "local %t would be addressed by i, and is held in registers"),
        ("for %i in 0..4 { store %t[%i * 2], %y[%i] }", "local %t would be addressed by i*2, and is held in registers"),
        ("for %i in 0..8 { store %t[3], %y[%i] }", "local %t would be addressed by 3, and is held in registers"),
        (
            "local %c: f32[] store 0.0, %c[] for %i in 0..8 { store %c[] + %t[%i], %c[] store %c[], %y[%i] }",
            "local %t would be addressed step by step, by loop %i, and is held in registers",
        ),
    ],
)
def test_every_access_ranges_over_the_buffer(use: str, problem: str) -> None:
    assert addressing_problem(parse_kernel(f"kernel @k(in %x: f32[8], out %y: f32[8]) {{ {FILL} {use} }}")) == problem


def test_a_buffer_of_dynamic_size() -> None:
    text = """kernel @k(size n in 1..9 hint 4, in %x: f32[n], out %y: f32[n]) {
      local %t: f32[n] for %k in 0..n { store exp(%x[%k]), %t[%k] } for %i in 0..n { store %t[%i], %y[%i] } }"""
    assert addressing_problem(parse_kernel(text)).startswith("local %t has a size that only a call decides")


def losses() -> Graph:
    return parse_graph("""graph(%x: f32[3, 5], %i: i64[3, 1]) {
      %p = log_softmax %x {dim=1}  %y = gather %p, %i {dim=1}  return %y }""")


@pytest.mark.parametrize(("target", "kernels"), [("sm90", 2), ("x86-64-v4", 1)])
def test_a_gpu_does_not_gather_from_registers(target: str, kernels: int) -> None:
    assert target_by_name(target).name == target
    assert len(lower_and_schedule(losses(), Options(target=target)).scheduled.kernels) == kernels
