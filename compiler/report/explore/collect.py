"""Collection of the page's data from recorded compilations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from compiler import __version__
from compiler.codegen.backend import backend_of
from compiler.codegen.llvm.targets import CPUTarget
from compiler.codegen.triton.targets import GPUTarget
from compiler.cost.estimates import roofline_seconds
from compiler.driver.compiled_graph import ExecutedProgram
from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.tile.kernel import Kernel
from compiler.ir.tile.program import Launch, Program, execution_counts, walk_steps
from compiler.options import Options
from compiler.pipeline import Stages
from compiler.report.explore.drawing import DrawingBuilder
from compiler.report.explore.origins import OriginLoc, OriginTable, name_by_origin, subject_of
from compiler.report.explore.page_data import (
    MemoryBlock,
    MemoryMap,
    Origin,
    Page,
    PageKernel,
    PageRemark,
    SourceFile,
    Steps,
    Way,
)
from compiler.report.explore.recording import Recording, record
from compiler.report.explore.rewrites import printed_lines
from compiler.report.explore.roofline import ceilings_of
from compiler.report.explore.steps import launch_seconds, predicted_alternatives, steps_of
from compiler.report.origin import KernelOrigin
from compiler.report.profile import Profile
from compiler.report.remark_groups import RemarkGroup, group_remarks
from compiler.report.render import abbreviate, format_location
from compiler.report.report import KernelReport, kernel_reports
from compiler.report.trace import trace_events
from compiler.runtime.executable import workspace_buffers
from compiler.runtime.memory import grid_in_place_pairs, in_place_pairs, lifetimes, plan_memory
from compiler.runtime.profile import sharing_threads

SOURCE_MARGIN = 6
"""Lines of the user's program shown around those that became nodes."""


@dataclass
class PageBuilder:
    """A page under construction: ways to compile one model, whose nodes share one table of origins."""

    title: str
    origins: OriginTable = field(default_factory=OriginTable)
    ways: list[Way] = field(default_factory=list)

    def add_compiled(
        self,
        name: str,
        options: Options,
        programs: Sequence[ExecutedProgram],
        profile: Profile | None,
        facts: Mapping[str, str],
    ) -> None:
        """Add a way that compiled, one entry for each of its programs; `profile` is of calls of all of them."""
        measured = iter(profile.steps if profile else ())
        for part, p in enumerate(programs):
            label = f"{name}, part {part + 1}" if len(programs) > 1 else name
            steps = [s for s, _ in islice(measured, sum(1 for _ in execution_counts(p.stages.scheduled.steps)))]
            seconds: dict[str, float] = {}
            for s in steps:
                seconds[s.name] = seconds.get(s.name, 0.0) + s.seconds
            recording = record(p.variant.plan.specialized_graph(), options, self.origins, part)
            trace = trace_events(profile)["traceEvents"] if profile and part == 0 else []
            call = profile.call.median if profile else None
            self.ways.append(WayBuilder(label, recording, options, seconds, facts).build(trace, call))

    def add_failed(self, name: str, options: Options, graph: Graph, error: TilewrightError) -> None:
        """Add a way that did not compile: as much as its passes did before the error."""
        recording = record(graph, options, self.origins)
        self.ways.append(WayBuilder(name, recording, options, {}, {}, str(error)).build([], None))

    def add_rejected(self, name: str, options: Options, program: str, error: TilewrightError) -> None:
        """Add a way whose import failed: the text of the exported program."""
        text = Steps(program.splitlines(), [])
        nothing: dict[str, Any] = {
            "memory": None,
            "trace": [],
            "ceilings": None,
            "facts": {},
            "seconds": None,
            "predicted": None,
        }
        self.ways.append(Way(name, options.target, text, Steps([], []), [], [], [], [], error=str(error), **nothing))

    def page(self) -> Page:
        """Return the page."""
        files: dict[str, list[tuple[int, str]]] = {}
        for n in self.origins.nodes:
            if n.loc and n.loc.file:
                files.setdefault(n.loc.file, []).append((n.loc.line, n.loc.code))
        numbers = {file: k for k, file in enumerate(files)}
        origins = [
            Origin(
                n.name,
                n.op.name,
                str(n.result_type),
                numbers[n.loc.file] if n.loc and n.loc.file else -1,
                n.loc.line if n.loc else 0,
                n.loc.module if n.loc else "",
            )
            for n in self.origins.nodes
        ]
        sources = [source_file(file, lines) for file, lines in files.items()]
        return Page(self.title, __version__, sources, origins, self.ways)


def source_file(file: str, known: Sequence[tuple[int, str]]) -> SourceFile:
    """Return the part of a file around lines of the user's program; those lines alone if it cannot be read."""
    first, last = max(1, min(known)[0] - SOURCE_MARGIN), max(known)[0] + SOURCE_MARGIN
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()[first - 1 : last]
    except (OSError, UnicodeDecodeError):
        code = dict(known)
        lines = [code.get(k, "") for k in range(first, last + 1)]
    return SourceFile(Path(file).name, first, lines)


@dataclass
class WayBuilder:
    """One program compiled in one way."""

    name: str
    recording: Recording
    options: Options
    seconds: Mapping[str, float]
    facts: Mapping[str, str]
    error: str = ""

    def build(self, trace: Sequence[Mapping[str, Any]], call: float | None) -> Way:
        """Return the way; `trace` is of one call, `call` its seconds."""
        r, drawings = self.recording, DrawingBuilder()
        kernels = kernels_by_node(r.stages)
        graph_runs = r.runs_over(Graph)
        drawings.draw_step(r.graph, {})
        graph = steps_of(graph_runs, r.context, drawings, kernels) if graph_runs else Steps(printed_lines(r.graph), [])
        reports = {k.name: k for k in kernel_reports(r.stages)} if r.stages else {}
        names = reports or dict.fromkeys(r.kernel_runs())
        pages = [self.kernel(name, reports.get(name)) for name in names]
        origins = {k.name: k.origin for k in reports.values()}
        predictions = [k.predicted for k in pages]
        error = self.error or (str(r.error) if r.error else "")
        return Way(
            self.name,
            r.target.name,
            graph,
            steps_of(r.runs_over(Program), r.context),
            drawings.nodes,
            drawings.drawings,
            pages,
            [page_remark(g, origins) for g in group_remarks(r.context.remarks, origins, self.seconds)],
            memory_map(r.stages.scheduled, isinstance(r.target, GPUTarget)) if r.stages else None,
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
            return PageKernel(name, "", "", "", 0, 0, 0, None, None, None, [], [], [], tile, {})
        count = report.launches
        remarks = [page_remark(g, {name: report.origin}) for g in group_remarks(report.remarks, {name: report.origin})]
        return PageKernel(
            name,
            abbreviate(report.origin.ops),
            format_location(report.origin.place),
            report.dtypes,
            count,
            count * report.flops,
            count * report.bytes,
            count * launch_seconds(scheduled, machine) if machine else None,
            count * roofline_seconds(scheduled, machine, sharing_threads(scheduled)) if machine else None,
            self.seconds.get(name),
            kernel_origin_numbers(report.origin),
            remarks,
            predicted_alternatives(runs, r, machine) if machine else [],
            tile,
            dict(self.code(scheduled)),
        )

    def code(self, kernel: Kernel) -> Iterator[tuple[str, str]]:
        """Yield the name of each stage of code generation, and its text for a kernel, or why there is none."""
        for stage, printer in backend_of(self.recording.target).printers.items():
            try:
                yield stage, printer(kernel, self.recording.target)
            except TilewrightError as error:
                yield stage, f"no code: {error}"


def kernels_by_node(stages: Stages | None) -> dict[str, str]:
    """Return the kernel that computes each node of the fused graph, by the name that the page gives the node."""
    if stages is None:
        return {}
    own = unique_names(stages.fused.nodes).values()
    shown = unique_names(name_by_origin(stages.fused).nodes).values()
    page_names = dict(zip(own, shown, strict=True))
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
