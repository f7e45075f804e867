"""Comparison of IR before and after passes, by the interpreter and by native code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import compiler
from compiler.errors import PassError
from compiler.ir.graph.graph import Graph
from compiler.ir.interpret.tile import run_kernel
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.tile.kernel import Kernel, Range
from compiler.passes.base import Context, GraphPass, TilePass
from compiler.passes.manager import run_pipeline
from compiler.passes.semantic_check import (
    CheckWarning,
    SemanticCheck,
    describe_difference,
    input_types,
    outputs_of,
    run_on,
    run_with_valid_range,
    tolerance,
)
from compiler.passes.tile import peel
from compiler.runtime.native_interpreter import NativeInterpreter

GRAPH = parse_graph("graph @g(%x: f32[4]) { %a = add %x, 1.0  %y = exp %a  return %y }")
KERNEL_TEXT = "kernel @k(in %x: f32[4], out %y: f32[4]) { for %i in 0..4 { store %x[%i] + 1.0, %y[%i] } }"
KERNEL = parse_kernel(KERNEL_TEXT)
PROGRAM = parse_program(f"program {{ input %a: f32[4]  output %b: f32[4]  {KERNEL_TEXT}  launch @k(%a, %b) }}")


@dataclass(frozen=True)
class ReplaceGraph(GraphPass):
    """Return a given graph."""

    result: Graph = GRAPH
    name = "test-replace-graph"

    def run(self, ir: Graph, context: Context) -> Graph:
        return self.result


@dataclass(frozen=True)
class ReplaceKernel(TilePass):
    """Return a given kernel."""

    result: Kernel = KERNEL
    name = "test-replace-kernel"

    def run(self, ir: Kernel, context: Context) -> Kernel:
        return self.result


def test_semantic_check_names_pass_output_and_element() -> None:
    wrong = parse_kernel(KERNEL_TEXT.replace("1.0", "2.0"))
    with pytest.raises(PassError, match=r"test-replace-kernel changed the result of @k: output 0: 4 of 4 elements"):
        run_pipeline(KERNEL, [ReplaceKernel(wrong)], instruments=[SemanticCheck()])
    run_pipeline(GRAPH, [ReplaceGraph(GRAPH)], instruments=[SemanticCheck()])


def test_semantic_check_names_sizes_of_a_dynamic_graph() -> None:
    text = "graph @g(size n in 2..64 hint 8, %x: f32[n]) { %y = add %x, 1.0  return %y }"
    wrong = parse_graph(text.replace("1.0", "2.0"))
    with pytest.raises(PassError, match=r"changed the result of @g: output 0: .* where n = \d+"):
        run_pipeline(parse_graph(text), [ReplaceGraph(wrong)], instruments=[SemanticCheck()])


WRONG = parse_kernel(KERNEL_TEXT.replace("1.0", "2.0"))


def test_a_skipped_check_warns_and_names_pass_kernel_and_reason() -> None:
    check, context = SemanticCheck(max_statements=1), Context()
    with pytest.warns(CheckWarning, match="pass test-replace-kernel is not checked on @k: .* more than 1 statements"):
        run_pipeline(KERNEL, [ReplaceKernel(WRONG)], context, [check])
    assert [s.pass_name for s in check.skipped] == ["test-replace-kernel"]
    assert any("check skipped" in r.message for r in context.remarks)


def test_a_strict_check_refuses_to_skip() -> None:
    check = SemanticCheck(max_statements=1, strict=True)
    with pytest.raises(PassError, match="pass test-replace-kernel is not checked on @k"):
        run_pipeline(KERNEL, [ReplaceKernel(KERNEL.with_body(KERNEL.body * 2))], instruments=[check])


LARGE = "kernel @k(in %x: f32[7000], out %y: f32[7000]) { for %i in 0..7000 { store exp(%x[%i]) + 1.0, %y[%i] } }"


def test_large_kernels_run_as_native_code() -> None:
    check = SemanticCheck(run_native=NativeInterpreter(), strict=True)
    run_pipeline(parse_kernel(LARGE), "vectorize,tile,peel,parallelize,expand-math", instruments=[check])
    wrong = ReplaceKernel(parse_kernel(LARGE.replace("0..7000", "0..6999")))
    with pytest.raises(PassError, match=r"changed the result of @k: output 0: 1 of 7000 elements .* is nan"):
        run_pipeline(parse_kernel(LARGE), [wrong], instruments=[check])


@pytest.mark.parametrize("why", ["copy_async %x[0] -> %t[0] size 7000  wait %t", "local %big: f32[9000000]"])
def test_what_has_no_native_code_is_skipped_with_the_reason(why: str) -> None:
    kernel = parse_kernel(LARGE.replace("{ for", f"{{ local %t: f32[7000]  {why}  for"))
    check = SemanticCheck(run_native=NativeInterpreter())
    with pytest.warns(CheckWarning, match="@k has no native code: "):
        run_pipeline(kernel, "vectorize", instruments=[check])


def test_the_ir_before_a_pass_is_not_blamed_on_it() -> None:
    outside = parse_kernel(
        "kernel @k(size n in 1..9 hint 4, in %x: f32[n], out %y: f32[n]) { for %i in 0..n { store %x[%i + 1], %y[%i] } }"
    )
    with pytest.raises(PassError, match="the IR is invalid before pass test-replace-kernel: %x"):
        run_pipeline(outside, [ReplaceKernel(KERNEL)], instruments=[SemanticCheck()])


def test_a_fault_in_long_loops_alone_is_found_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """`peel` drops the remainder of loops that are too long for the interpreter."""
    peel_range = peel.peel_range

    def faulty(r: Range, is_loop: bool = False, max_rows: float = 0) -> list[Range]:
        parts = peel_range(r, is_loop, max_rows)
        return parts[:-1] if isinstance(r.extent, int) and r.extent > 100 and len(parts) > 1 else parts

    monkeypatch.setattr(peel, "peel_range", faulty)
    options = {"check": "strict", "target": "x86-64-v3", "cache": ""}
    with pytest.raises(PassError, match=r"pass peel changed the result of @.* elements differ; .* is nan"):
        compiler.compile(nn.Linear(70, 301), (torch.randn(130, 70),), options=options)


NATIVE = """kernel @k(size n in 1..99 hint 8, in %x: bf16[n, 6]{1, 0}, const %w: i8[6], out %y: f32[n], scratch %s: f32[n]) {
  parallel %i in 0..n tile 4 {
    local %t: f32[6]
    for %j in 0..6 tile 4 lanes 4 { store tanh(cast<f32>(%x[%i, %j])) * cast<f32>(%w[%j]), %t[%j] }
    %m = reduce max %j in 0..6 tile 2 { yield %t[%j] }
    store %m, %s[%i]
    store %s[%i] - 1.0, %y[%i] nontemporal
  }
}"""


def test_native_code_computes_what_the_interpreter_does() -> None:
    kernel, sizes = parse_kernel(NATIVE), {"n": 7}
    expected, actual = (outputs_of(kernel, 3, sizes, run=run) for run in (run_kernel, NativeInterpreter()))
    assert not describe_difference(expected[0], actual[0], 1e-6)


def test_native_stores_outside_a_buffer_are_seen() -> None:
    outside = parse_kernel(KERNEL_TEXT.replace("%y[%i]", "%y[%i + 3]"))
    with pytest.raises(Exception, match="@k stores outside %y"):
        outputs_of(outside, run=NativeInterpreter())


def test_native_checks_of_indices_are_reported() -> None:
    text = """kernel @k(in %x: i64[2], out %y: i64[2]) {
      for %i in 0..2 { %v = %x[%i]  check %v in 0..1  store %v, %y[%i] } }"""
    arrays = [np.array([0, 5]), np.zeros(2, np.int64)]
    with pytest.raises(IndexError, match="@k: an index is out of range"):
        run_on(parse_kernel(text), arrays, run=NativeInterpreter())


def test_interprets_every_kind_of_ir_on_the_same_inputs() -> None:
    (graph,) = outputs_of(parse_graph("graph(%x: f32[4]) { %y = add %x, 1.0  return %y }"))
    (kernel,), (program,) = outputs_of(KERNEL), outputs_of(PROGRAM)
    np.testing.assert_allclose(graph, kernel, rtol=1e-6)
    np.testing.assert_array_equal(kernel, program)
    assert [str(t) for t in input_types(KERNEL, {})] == ["f32[4]", "f32[4]"]
    assert [str(t) for t in input_types(PROGRAM, {})] == ["f32[4]"]


def test_kernel_runs_on_copies_of_its_inputs() -> None:
    kernel = parse_kernel("kernel @k(inout %y: f32[2]) { for %i in 0..2 { store %y[%i] + 1.0, %y[%i] } }")
    array = np.zeros(2, np.float32)
    (result,) = run_on(kernel, [array])
    np.testing.assert_array_equal(result, [1, 1])
    np.testing.assert_array_equal(array, [0, 0])


def test_tolerance_of_the_least_precise_dtype() -> None:
    def of(dtype: str) -> float:
        return tolerance(parse_graph(f"graph(%x: f64[2]) {{ %y = cast %x {{dtype={dtype}}}  return %y }}"))

    assert of("f64") < of("f32") < of("f16") < of("bf16")
    assert of("i32") == of("f64")


def test_tries_smaller_ranges_until_indices_are_valid() -> None:
    tried: list[tuple[int, int]] = []

    def run(low: int, high: int) -> list[int]:
        tried.append((low, high))
        if high > 2:
            raise IndexError
        return [high]

    assert run_with_valid_range(run) == [2]
    assert tried == [(0, 8), (0, 2)]


F = np.float32


@pytest.mark.parametrize(
    ("expected", "actual", "relative", "text"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, ""),
        ([0.0], [-0.0], 0.0, "1 of 1 elements differ; element [0] is -0.0 instead of 0.0"),
        ([0.0], [-0.0], 1e-6, ""),
        ([np.nan], [np.nan], 0.0, ""),
        ([np.inf], [np.nan], 1e-6, "1 of 1 elements differ"),
        ([1.0, 3.0], [1.0, 2.0], 1e-3, "1 of 2 elements differ; element [1] is 2.0"),
        ([1000.0, 0.0], [1000.0, 0.5], 1e-3, ""),  # relative to the largest value
        ([1000.0, 0.0], [1000.0, 1.5], 1e-3, "1 of 2"),
        ([np.inf, 0.0], [np.inf, 0.5], 1e-3, "1 of 2"),
        ([1.0], [1.0, 1.0], 0.0, "float32[2] instead of float32[1]"),
    ],
)
def test_describes_difference(expected: list[float], actual: list[float], relative: float, text: str) -> None:
    found = describe_difference(np.array(expected, F), np.array(actual, F), relative)
    assert found.startswith(text) if text else found == ""


def test_describes_difference_of_dtypes_and_integers() -> None:
    assert describe_difference(np.zeros(1, F), np.zeros(1)) == "float64[1] instead of float32[1]"
    assert describe_difference(np.array([1, 2]), np.array([1, 3]), 0.9).startswith("1 of 2 elements differ")
