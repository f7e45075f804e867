"""fuse: for a GPU, at the prices of the GPU."""

from __future__ import annotations

import pytest

from compiler.cost.machine import AVX512, GPU, Machine
from compiler.ir.text.graph_parser import parse_graph
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline

RECOMPUTED = """graph(%x: f32[512, 64], %b: f32[64]) {
  %e = exp %b  %s = sin %e  %y = add %x, %s  return %y }"""

CENTERED = """graph(%x: f32[2048, 2048]) {
  %m = sum %x {dims=[0, 1], keepdim=true}  %y = sub %x, %m  return %y }"""


def kernels(text: str, machine: Machine) -> int:
    """The kernels that a graph becomes."""
    context = Context(machine)
    run_pipeline(parse_graph(text), "fuse", context)
    return context.statistics["fuse: kernels"]


def test_a_launch_costs_more_than_computing_a_row_again() -> None:
    """The passes ask the machine of the target: with a CPU's price of a launch, the same GPU keeps two kernels."""
    assert kernels(RECOMPUTED, GPU()) == 1
    assert kernels(RECOMPUTED, GPU(launch_seconds=AVX512.launch_seconds)) == 2


@pytest.mark.parametrize(("multiprocessors", "expected"), [(132, 2), (1, 1)])
def test_one_program_for_all_leaves_multiprocessors_idle(multiprocessors: int, expected: int) -> None:
    assert kernels(CENTERED, GPU(multiprocessors=multiprocessors)) == expected
