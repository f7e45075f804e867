"""The stages of a compilation, from Graph IR to a scheduled program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import compiler
from compiler.codegen.backend import backend_of, target_by_name
from compiler.errors import OptionError, TargetError, VerifyError
from compiler.ir import ops
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.node import constant_node, input_node
from compiler.ir.graph.structure import Fused
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.tile.kernel import Kernel, Local
from compiler.ir.tile.program import Program
from compiler.ir.types import TensorType, f32
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import PassTiming
from compiler.passes.manager import KernelSink, PassInstrument, run_pipeline
from compiler.passes.pipeline_text import parse_pipeline, print_pipeline
from compiler.pipeline import Stages, lower_and_schedule

GRAPH = parse_graph("""graph(%x: f32[8, 16], %w: f32[16, 32]) {
  %m = matmul %x, %w  %y = relu %m  %s = sum %y {dims=[0, 1]}  return %y, %s }""")


def stages(target: str = "x86-64-v3", **options: object) -> Stages:
    return lower_and_schedule(GRAPH, Options(target=target, cache="", **options))  # type: ignore[arg-type]


def kernel_count(graph: Graph) -> int:
    return sum(isinstance(n.structure, Fused) for n in graph.nodes)


def test_each_stage_refines_the_one_before() -> None:
    s = stages()
    assert s.imported is GRAPH
    assert kernel_count(s.fused) == 2
    assert len(s.lowered.kernels) == len(s.scheduled.kernels) == 2
    assert s.lowered.inputs == s.scheduled.inputs == ("x", "w")
    assert s.scheduled != s.lowered
    assert s.target is target_by_name("x86-64-v3")
    assert s.context.machine is s.target.machine


def test_option_disables_fusion() -> None:
    assert kernel_count(stages(fuse=False).fused) == 3


def test_options_replace_pipelines() -> None:
    timing = PassTiming()
    options = Options(target="x86-64-v3", cache="", graph_passes="fuse{enabled=false}", tile_passes="collapse")
    s = lower_and_schedule(GRAPH, options, [timing])
    assert kernel_count(s.fused) == 3
    assert [r.pass_.name for r in timing.runs] == ["fuse", "collapse", "collapse", "collapse"]  # each kernel by itself


def test_option_disables_winograd() -> None:
    image = input_node("x", TensorType(f32, (1, 64, 58, 58)))
    weight = constant_node(np.ones((64, 64, 3, 3), np.float32))
    graph = Graph((image,), (ops.conv(image, weight, stride=[1, 1], dilation=[1, 1]),))
    for enabled in (True, False):
        timing = PassTiming()
        options = Options(target="x86-64-v4", cache="", winograd=enabled, tile_passes="collapse")
        lower_and_schedule(graph, options, [timing])
        assert ("winograd" in [r.pass_.name for r in timing.runs]) == enabled


class Sink:
    """Records what is final, in order."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.kernels: dict[str, Kernel] = {}

    def reserve(self, graph: Graph) -> None:
        assert not self.kernels
        self.graphs.append(graph)

    def add(self, kernel: Kernel, program: Program) -> None:
        assert kernel.name in program.kernels
        self.kernels[kernel.name] = kernel


def test_sink_receives_the_fused_graph_and_every_scheduled_kernel() -> None:
    sink = Sink()
    s = lower_and_schedule(GRAPH, Options(target="x86-64-v3", cache=""), sink=sink)
    assert sink.graphs == [s.fused]
    assert sink.kernels == s.scheduled.kernels


@pytest.mark.parametrize("target", ["x86-64-v3", "sm90"])
def test_scheduler_gets_the_passes_of_the_target(target: str) -> None:
    given: list[str] = []

    def schedule(
        ir: Program,
        passes: str,
        context: Context,
        instruments: Sequence[PassInstrument],
        finished: KernelSink | None,
    ) -> Program:
        given.append(passes)
        return run_pipeline(ir, passes, context, instruments, finished)

    lower_and_schedule(GRAPH, Options(target=target, cache=""), schedule=schedule)
    passes = parse_pipeline(backend_of(target_by_name(target)).pipelines.program)
    assert given == [print_pipeline(p for p in passes if p.name != "tf32-products")]  # what the user has not asked for


def test_verify_checks_memory_of_the_target() -> None:
    """A scheduler that places buffers in a memory that the target lacks."""

    def schedule(ir: Program, *_: object) -> Program:
        space = Local("t", TensorType(f32, (4,)), space="shared")
        kernels = {n: Kernel(k.name, k.params, (space, *k.body)) for n, k in ir.kernels.items()}
        return Program(**{**vars(ir), "kernels": kernels})

    options = Options(target="x86-64-v3", cache="")
    lower_and_schedule(GRAPH, options, schedule=schedule)
    with pytest.raises(VerifyError, match="lies in shared; x86-64-v3 has"):
        lower_and_schedule(GRAPH, options.with_(verify=True), schedule=schedule)


def test_unknown_target_is_refused() -> None:
    with pytest.raises(TargetError, match="no target is called 'x86-64-v9'"):
        stages("x86-64-v9")


def test_fast_compilation_takes_shorter_pipelines() -> None:
    """Smaller fused groups, and so more kernels; the results are those of the default."""
    graph = parse_graph(
        "graph(%x0: f32[8, 16]) {" + "".join(f" %x{k + 1} = tanh %x{k}" for k in range(40)) + " return %x40 }"
    )
    kernels = {
        effort: len(lower_and_schedule(graph, Options(effort=effort, cache="")).scheduled.kernels)
        for effort in ("default", "fast")
    }
    assert kernels["fast"] > kernels["default"]
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1)), torch.randn(4, 8)
    fast = compiler.compile(model, (x,), options={"effort": "fast", "cache": ""})
    torch.testing.assert_close(fast(x), model(x))
    with pytest.raises(OptionError, match="option effort must be one of 'fast', 'default', 'tune', but is 'quick'"):
        Options(effort="quick")
