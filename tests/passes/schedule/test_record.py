"""What passes decided, printed as schedules and applied to the lowered kernels, makes the same kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.backend import backend_of, target_by_name
from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.symbolic.index_expr import dynamic_size
from compiler.ir.text.ir_text import AnyIR, parse_ir
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.lowering.program import lower
from compiler.passes.base import Context
from compiler.passes.manager import run_pipeline
from compiler.passes.pipeline_text import parse_pipeline, split_at_kernels
from compiler.passes.schedule.record import ScheduleRecorder
from compiler.passes.schedule.schedule import parse_schedules
from compiler.testing.fuzz import random_graph

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.ir"))
TARGETS = ("x86-64-v4", "x86-64-v3", "sm90")


def lowered_program(ir: Graph, context: Context, graph_passes: str, program_passes: str) -> Program:
    """The program before the passes over kernels by themselves."""
    lowered = lower(run_pipeline(ir, graph_passes, context), machine=context.machine)
    return run_pipeline(lowered, split_at_kernels(parse_pipeline(program_passes))[0], context)


def check_round_trip(ir: AnyIR, target_name: str) -> str:
    """Record, print, parse and apply the schedules of all kernels; return their text."""
    target = target_by_name(target_name)
    context, pipelines, recorder = Context.for_target(target), backend_of(target).pipelines, ScheduleRecorder()
    kernels = {ir.name: ir} if isinstance(ir, Kernel) else {}
    if isinstance(ir, Graph):
        program = lowered_program(ir, context, pipelines.graph, pipelines.program)
        kernels, context.program = dict(program.kernels), program
    tile_passes = split_at_kernels(parse_pipeline(pipelines.program))[1]
    scheduled = {name: run_pipeline(k, tile_passes, context, [recorder]) for name, k in kernels.items()}
    text = "\n".join(map(str, recorder.schedules_of(scheduled).values()))
    read = parse_schedules(text)
    assert {name: s.apply(kernels[name], context) for name, s in read.items()} == scheduled
    return text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples(path: Path, target: str) -> None:
    check_round_trip(parse_ir(path.read_text()), target)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 100_000), st.sampled_from(TARGETS[:2]))
def test_random_graphs(seed: int, target: str) -> None:
    graph = random_graph(seed)
    sizes = {n: dynamic_size(n, 2, 4096, 500) for n in graph.symbols}
    try:
        graph = graph.specialize(sizes)
        run_pipeline(graph, backend_of(target_by_name(target)).pipelines.graph, Context())
    except TilewrightError:
        return  # not for every size
    check_round_trip(graph, target)


def test_decisions_are_directives() -> None:
    kernel = parse_ir((EXAMPLES[0].parent / "linear.ir").read_text())
    assert (
        check_round_trip(kernel, "x86-64-v4")
        == """schedule @linear {
  reorder %j, %i
  vectorize %j by 16
  tile %j by 48
  tile %i by 8
  pack %w {0/48, 1, 0%48}
  prefetch %w[%j, %k + 85] at %k
  parallel %j
}"""
    )


def record(text: str, pipeline: str) -> str:
    recorder = ScheduleRecorder()
    run_pipeline(parse_ir(text), pipeline, Context.for_target(target_by_name("x86-64-v4")), [recorder])
    return " ".join(map(str, recorder.schedules["k"].steps))


COPY = """kernel @k(in %x: f32[64, 6], out %y: f32[64, 6]) {
  parallel %i in 0..64 { parallel %j in 0..6 { store %x[%i, %j], %y[%i, %j] } }
}"""


@pytest.mark.parametrize(
    ("pipeline", "steps"),
    [
        ("collapse", "collapse %i %j"),
        ("collapse,vectorize,tile", "collapse %i %j vectorize %i by 16 tile %i by 64"),
        ("vectorize{skipped-choices=9}", ""),
        ("vectorize,tile,peel", "vectorize %j by 16 tile %j by 6"),
        ("nontemporal-stores{cache-divisor=100000}", "nontemporal %y"),
        ("parallelize", "serial"),
        ("parallelize{min-seconds=0}", "parallel %i"),
    ],
)
def test_what_one_pass_decided(pipeline: str, steps: str) -> None:
    assert record(COPY, pipeline) == steps


def test_a_pass_over_the_program_begins_anew() -> None:
    recorder, context = ScheduleRecorder(), Context()
    program = lower(run_pipeline(parse_ir("graph @g(%x: f32[70]) { %y = exp %x   return %y }"), "fuse"))
    scheduled = run_pipeline(program, "vectorize,layout,peel", context, [recorder])
    (schedule,) = recorder.schedules_of(scheduled.kernels).values()
    assert [s.name for s in schedule.steps] == ["peel"]
    assert recorder.schedules_of({}) == {}
