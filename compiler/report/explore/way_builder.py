"""One way to compile a model as data of the page: steps, drawings, kernels, remarks, memory and times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from compiler.analysis.kernel_origin import KernelOrigin
from compiler.analysis.opaque_calls import opaque_operators
from compiler.codegen.backend import backend_of
from compiler.codegen.llvm.targets import CPUTarget
from compiler.codegen.triton.targets import GPUTarget
from compiler.cost.estimates import roofline_seconds
from compiler.cost.machine import Machine
from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.text.statement_lines import StatementLines
from compiler.ir.tile.dynamic_sizes import specialize_buffers
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Launch, OpaqueCall, Program, execution_counts, walk_steps
from compiler.options import Options
from compiler.pipeline import Stages
from compiler.report.explore.drawing import DrawingBuilder
from compiler.report.explore.origins import OriginLoc, origin_name, subject_of
from compiler.report.explore.page_data import (
    MemoryBlock,
    MemoryMap,
    PageCode,
    PageKernel,
    PageRemark,
    PageWay,
    Statements,
    Steps,
)
from compiler.report.explore.recording import RecordedCompilation
from compiler.report.explore.rewrites import printed_lines
from compiler.report.explore.roofline import ceilings_of
from compiler.report.explore.statement_origins import kernel_values, statement_origins
from compiler.report.explore.steps import launch_seconds, predicted_alternatives, steps_of
from compiler.report.gpu_kernels import GPUKernelReport, gpu_kernel_reports
from compiler.report.remark_groups import RemarkGroup, group_remarks
from compiler.report.render import abbreviate, format_location
from compiler.report.report import KernelReport, kernel_reports
from compiler.runtime.executable import workspace_buffers
from compiler.runtime.memory import grid_in_place_pairs, in_place_pairs, lifetimes, plan_memory
from compiler.runtime.profile import sharing_threads


@dataclass
class WayBuilder:
    """One program compiled in one way; `sizes` are the dynamic sizes of the measured call, `seconds` its time by kernel."""

    name: str
    recording: RecordedCompilation
    options: Options
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    def build(self, trace: Sequence[Mapping[str, Any]], call: float | None) -> PageWay:
        """Return the way; `trace` is of one call, `call` its seconds."""
        r, drawings = self.recording, DrawingBuilder()
        kernels = kernels_by_node(r.stages)
        graph_runs = r.runs_over(Graph)
        drawings.draw_step(r.graph, {})
        graph = steps_of(graph_runs, r.context, drawings, kernels) if graph_runs else Steps(printed_lines(r.graph), [])
        reports = {k.name: k for k in kernel_reports(r.stages, self.sizes)} if r.stages else {}
        names = reports or dict.fromkeys(r.kernel_runs())
        pages = [
            *(self.kernel(name, reports.get(name)) for name in names),
            *(self.opaque_kernels(r.stages) if r.stages else ()),
        ]
        origins = {k.name: k.origin for k in reports.values()}
        predictions = [k.predicted for k in pages if k.tile.text]
        error = self.error or (str(r.error) if r.error else "")
        return PageWay(
            self.name,
            r.target.name,
            graph,
            steps_of(r.runs_over(Program), r.context),
            drawings.nodes,
            drawings.drawings,
            pages,
            [page_remark(g, origins) for g in group_remarks(r.context.remarks, origins, self.seconds)],
            memory_map(specialize_buffers(r.stages.scheduled, self.sizes), isinstance(r.target, GPUTarget))
            if r.stages
            else None,
            trace,
            ceilings_of(r.target, self.options),
            self.facts,
            call,
            sum(p for p in predictions if p is not None) if pages and None not in predictions else None,
            error,
        )

    def kernel(self, name: str, report: KernelReport | None) -> PageKernel:
        """Return everything about one kernel; `report` is None if a pass failed before all kernels were done."""
        r, runs = self.recording, self.recording.kernel_runs().get(name, [])
        machine = r.target.machine if isinstance(r.target, CPUTarget) else None
        scheduled = r.stages.scheduled.kernels[name] if r.stages else None
        tile = steps_of(runs, r.context) if runs or scheduled is None else Steps(printed_lines(scheduled), [])
        if report is None or scheduled is None:
            return PageKernel(name, tile=tile)
        count, gpu = report.launches, self.gpu_kernels.get(name)
        predicted, roofline = (count * gpu.predicted, count * gpu.roofline) if gpu else (None, None)
        if machine:
            predicted = count * launch_seconds(scheduled, machine, self.sizes)
            threads = sharing_threads(scheduled, self.sizes)
            roofline = count * roofline_seconds(scheduled, machine, threads, self.sizes)
        remarks = [page_remark(g, {name: report.origin}) for g in group_remarks(report.remarks, {name: report.origin})]
        return PageKernel(
            name,
            abbreviate(report.origin.ops),
            format_location(report.origin.place),
            report.dtypes,
            count,
            count * report.flops,
            count * report.bytes,
            predicted,
            roofline,
            self.seconds.get(name),
            kernel_origin_numbers(report.origin),
            remarks,
            predicted_alternatives(runs, r, machine) if machine else [],
            tile,
            self.statements(scheduled),
            dict(self.code(scheduled)),
            gpu.facts if gpu else {},
        )

    def opaque_kernels(self, stages: Stages) -> Iterator[PageKernel]:
        """Yield what takes the place of kernels in the steps of a program: calls into PyTorch, and copies."""
        runs = Counter[str]()
        for step, count in execution_counts(stages.scheduled.steps):
            if not isinstance(step, Launch):
                runs[step.operator if isinstance(step, OpaqueCall) else "copy"] += count
        operators = list(opaque_operators(stages.fused.outputs))
        for name, launches in runs.items():
            same = [o for o in operators if o.operator == name]
            what = f"runs in PyTorch: {same[0].reason}" if same else "copies a buffer"
            where, seconds = format_location(same[0].loc) if same else "", self.seconds.get(name)
            origins = sorted({o.loc.number for o in same if isinstance(o.loc, OriginLoc)})
            yield PageKernel(name, what, where, launches=launches, seconds=seconds, origins=origins)

    @cached_property
    def gpu_kernels(self) -> Mapping[str, GPUKernelReport]:
        """The kernels as compiled for a GPU; none for a CPU."""
        stages, target = self.recording.stages, self.recording.target
        if stages is None or not isinstance(target, GPUTarget):
            return {}
        return {k.name: k for k in gpu_kernel_reports(stages.scheduled, target)}

    @cached_property
    def values(self) -> Mapping[str, Mapping[str, set[int]]]:
        """The origins of what names in Tile IR hold, for each kernel."""
        r = self.recording
        return kernel_values(r.stages, r.target.machine or Machine()) if r.stages else {}

    def statements(self, kernel: Kernel) -> Statements:
        """Return the statements of a scheduled kernel."""
        lines = StatementLines.of(kernel)
        origins = statement_origins(kernel, lines, self.values.get(kernel.name, {}))
        return Statements(lines.statement_of_line(kernel), origins)

    def code(self, kernel: Kernel) -> Iterator[tuple[str, PageCode]]:
        """Yield the name of each stage of code generation, and its listing for a kernel, or why there is none."""
        for stage, list_code in backend_of(self.recording.target).listings.items():
            try:
                listing = list_code(kernel, self.recording.target)
                yield stage, PageCode(listing.text, listing.lines)
            except TilewrightError as error:
                yield stage, PageCode(f"no code: {error}")


def kernels_by_node(stages: Stages | None) -> dict[str, str]:
    """Return the kernel that computes each node of the fused graph, by the name that the page gives the node."""
    if stages is None:
        return {}
    shown = unique_names(stages.fused.nodes, origin_name)
    page_names = {name: shown[n] for n, name in unique_names(stages.fused.nodes).items()}
    launches = (s for s in walk_steps(stages.scheduled.steps) if isinstance(s, Launch))
    return {page_names.get(s.node, s.node): s.kernel for s in launches}


def kernel_origin_numbers(origin: KernelOrigin) -> list[int]:
    """Return the numbers of the origins of the values computed in a kernel."""
    return sorted({loc.number for _, loc in origin.values if isinstance(loc, OriginLoc)})


def page_remark(g: RemarkGroup, origins: Mapping[str, KernelOrigin]) -> PageRemark:
    """Return a group of remarks for the page."""
    r = g.first
    numbers = [r.loc.number] if isinstance(r.loc, OriginLoc) else []
    if r.kernel in origins:
        numbers = kernel_origin_numbers(origins[r.kernel])
    return PageRemark(r.pass_, r.kind, r.message, subject_of(r), format_location(g.loc), g.count, g.lost, numbers)


def memory_map(program: Program, grid: bool) -> MemoryMap | None:
    """Return the workspace of a program of static sizes; `grid` says that GPUs run it."""
    if any(not isinstance(program.buffers[n].nbytes, int) for n in workspace_buffers(program)):
        return None
    plan = plan_memory(program, workspace_buffers(program), (grid_in_place_pairs if grid else in_place_pairs)(program))
    live = lifetimes(program, list(plan.offsets))
    blocks = [
        MemoryBlock(n, str(program.buffers[n]), offset, live[n].size, live[n].first, live[n].last)
        for n, offset in plan.offsets.items()
        if n in live
    ]
    return MemoryMap(plan.size, plan.size_without_reuse, [str(getattr(s, "kernel", s)) for s in program.steps], blocks)
