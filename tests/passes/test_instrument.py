"""Pass instruments and the comparison of results."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest

from compiler.errors import PassError, VerifyError
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.tile_parser import parse_kernel, parse_program
from compiler.ir.tile.kernel import Kernel
from compiler.options import Options
from compiler.passes.base import Context, GraphPass, TilePass
from compiler.passes.instrument import (
    PassTiming,
    PrintIR,
    SemanticCheck,
    Verify,
    describe_difference,
    input_types,
    instruments_for,
    interpret_on,
    interpreted_outputs,
    ir_size,
    ir_text,
    run_with_valid_range,
    tolerance,
    verify,
)
from compiler.passes.manager import run_pipeline

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


def test_size_and_text_of_every_kind_of_ir() -> None:
    assert [ir_size(ir) for ir in (GRAPH, KERNEL, PROGRAM)] == [len(GRAPH.nodes), 2, 1]
    assert [ir_text(ir).split("(")[0].split(" {")[0] for ir in (GRAPH, KERNEL, PROGRAM)] == [
        "graph @g",
        "kernel @k",
        "program",
    ]


def test_timing_lists_every_pass_with_sizes() -> None:
    timing = PassTiming()
    run_pipeline(GRAPH, "canonicalize,cse", instruments=[timing])
    assert [(row[0], row[2:]) for row in timing.rows] == [("canonicalize", (4, 4)), ("cse", (4, 4))]
    assert [line.split()[-1] for line in str(timing).splitlines()] == ["pass", "canonicalize", "cse"]


@pytest.mark.parametrize(
    ("printer", "titles"),
    [
        ({"before_passes": ["cse"]}, ["before cse"]),
        ({"after_passes": ["cse"]}, ["after cse"]),
        ({"before_passes": ["all"]}, ["before canonicalize", "before cse", "before fuse"]),
        ({"on_change": True}, ["after fuse"]),
        ({}, []),
    ],
)
def test_prints_ir_around_selected_passes(printer: dict[str, object], titles: list[str]) -> None:
    file = io.StringIO()
    run_pipeline(GRAPH, "canonicalize,cse,fuse", instruments=[PrintIR(**printer, file=file)])  # type: ignore[arg-type]
    comments = [line for line in file.getvalue().splitlines() if line.startswith("//")]
    assert comments == [f"// {title} (@g)" for title in titles]


def test_options_select_instruments() -> None:
    assert instruments_for(Options()) == []
    assert [type(i) for i in instruments_for(Options(verify=True, check=True))] == [Verify, SemanticCheck]
    (printer,) = instruments_for(Options(print_before="fuse,cse", print_after="all"))
    assert printer == PrintIR(("fuse", "cse"), ("all",), False)
    assert instruments_for(Options(print_after_change=True)) == [PrintIR(on_change=True)]


OUT_OF_RANGE = KERNEL_TEXT.replace("0..4", "0..5")


def test_verify_accepts_every_kind_of_ir_and_names_a_broken_rule() -> None:
    for ir in (GRAPH, KERNEL, PROGRAM):
        verify(ir)
    with pytest.raises(VerifyError):
        verify(parse_kernel(OUT_OF_RANGE))
    with pytest.raises(PassError, match="pass test-replace-kernel produced invalid IR for @k: "):
        run_pipeline(KERNEL, [ReplaceKernel(parse_kernel(OUT_OF_RANGE))], instruments=[Verify()])


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


def test_semantic_check_skips_large_ir_with_a_note() -> None:
    check, context = SemanticCheck(max_steps=1), Context()
    wrong = parse_kernel(KERNEL_TEXT.replace("1.0", "2.0"))
    run_pipeline(KERNEL, [ReplaceKernel(wrong)], context, [check])
    assert check.skipped == ["test-replace-kernel"]
    assert any("semantic check skipped" in r.message for r in context.remarks)


def test_interprets_every_kind_of_ir_on_the_same_inputs() -> None:
    (graph,) = interpreted_outputs(parse_graph("graph(%x: f32[4]) { %y = add %x, 1.0  return %y }"))
    (kernel,), (program,) = interpreted_outputs(KERNEL), interpreted_outputs(PROGRAM)
    np.testing.assert_allclose(graph, kernel, rtol=1e-6)
    np.testing.assert_array_equal(kernel, program)
    assert [str(t) for t in input_types(KERNEL, {})] == ["f32[4]", "f32[4]"]
    assert [str(t) for t in input_types(PROGRAM, {})] == ["f32[4]"]


def test_kernel_runs_on_copies_of_its_inputs() -> None:
    kernel = parse_kernel("kernel @k(inout %y: f32[2]) { for %i in 0..2 { store %y[%i] + 1.0, %y[%i] } }")
    array = np.zeros(2, np.float32)
    (result,) = interpret_on(kernel, [array])
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
