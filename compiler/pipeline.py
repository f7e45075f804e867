"""All stages as one function: graph passes, lowering, program and tile passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from compiler.analysis.memory_spaces import check_memory
from compiler.codegen.backend import backend_of, target_by_name
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Program
from compiler.lowering.program import lower
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.graph.decompose import Decompose
from compiler.passes.manager import KernelSink, PassInstrument, run_pipeline
from compiler.passes.pipeline_text import Pipeline, parse_pipeline, print_pipeline
from compiler.target import Target


@dataclass
class Stages:
    """IR of one compilation after each stage, and the context of its passes with their remarks."""

    imported: Graph
    fused: Graph
    lowered: Program
    scheduled: Program
    target: Target
    context: Context = field(default_factory=Context)


class Scheduler(Protocol):
    """Runs passes over a program and its kernels: `run_pipeline`, or the autotuner."""

    def __call__(
        self,
        ir: Program,
        passes: str,
        context: Context,
        instruments: Sequence[PassInstrument],
        finished: KernelSink | None,
    ) -> Program:
        """Return the program after all passes; `finished` is called with each kernel that no pass will change again."""


class CodeSink(Protocol):
    """Takes parts of a program as soon as they are final, so that code generation runs beside the passes."""

    def reserve(self, graph: Graph) -> None:
        """Prepare memory for the constants of a graph."""

    def add(self, kernel: Kernel, program: Program) -> None:
        """Begin to generate the code of a kernel of `program`."""


def pipelines_of(options: Options, target: Target) -> tuple[Pipeline, Pipeline]:
    """Return the passes over the graph and over the program that the options ask for."""
    pipelines = backend_of(target).pipelines
    default_graph, default_program = pipelines.chosen(options)
    precision = options.matmul_precision
    enabled = {
        "winograd": options.winograd,
        "reduce-precision": precision == "bf16",
        "tf32-products": precision == "tf32",
    }
    graph_passes = parse_pipeline(options.graph_passes or "default", default_graph)
    program_passes = parse_pipeline(options.tile_passes or "default", default_program)
    strict = options.fallback == "strict"
    graph_passes, program_passes = (
        tuple(p for p in passes if enabled.get(p.name, True)) for passes in (graph_passes, program_passes)
    )
    return tuple(replace(p, calls=not strict) if isinstance(p, Decompose) else p for p in graph_passes), program_passes


def lower_and_schedule(
    graph: Graph,
    options: Options,
    instruments: Sequence[PassInstrument] = (),
    schedule: Scheduler = run_pipeline,
    sink: CodeSink | None = None,
) -> Stages:
    """Run every stage from Graph IR to a scheduled program; `sink` takes final parts.  TargetError for an unknown target."""
    target = target_by_name(options.target, options.machine)
    context, (graph_passes, program_passes) = (
        Context.for_target(target, options.rewrite_limit),
        pipelines_of(options, target),
    )
    fused = run_pipeline(graph, graph_passes, context, instruments)
    if sink:
        sink.reserve(fused)
    lowered = lower(fused, context.lowered_kernels, context.machine)
    scheduled = schedule(lowered, print_pipeline(program_passes), context, instruments, sink.add if sink else None)
    if options.verify:
        check_memory(scheduled, target)
    return Stages(graph, fused, lowered, scheduled, target, context)
