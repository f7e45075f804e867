"""Report of one compilation: kernels and remarks, layouts, memory plan, times, and the IR of every stage."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from compiler.analysis.arithmetic_dtypes import arithmetic_dtypes
from compiler.cost.estimates import count_bytes, count_flops
from compiler.errors import Loc
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.structure import Fused, Leaf, Recurrence, is_view
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.program import Launch, Program, execution_counts
from compiler.ir.types import KERNEL_DTYPES, PACKED_DTYPES
from compiler.passes.remark import Remark
from compiler.pipeline import Stages
from compiler.report.render import abbreviate, format_bytes, format_location, render_plain, table, truncated_text
from compiler.runtime.executable import Executable
from compiler.runtime.memory import Lifetime, MemoryPlan, lifetimes
from compiler.runtime.profile import StepProfile
from compiler.target import Target


@dataclass(frozen=True)
class KernelOrigin:
    """Origin of a kernel: the ops it fuses (views only if there is nothing else) and a line of the user's program.

    `values` are the names and lines of all values computed in it.
    """

    ops: tuple[str, ...] = ()
    loc: Loc | None = None
    values: frozenset[tuple[str, Loc | None]] = frozenset()


def kernel_origins(fused: Graph) -> dict[str, KernelOrigin]:
    """Return the origin of each node of a fused graph, by the node name of its step."""
    origins: dict[str, KernelOrigin] = {}
    for node, name in unique_names(fused.nodes).items():
        if isinstance(node.structure, Recurrence):
            origins |= {f"{name}.{inner}": origin for inner, origin in kernel_origins(node.attrs["body"]).items()}
            continue
        body = node.attrs["body"].nodes if isinstance(node.structure, Fused) else (node,)
        inner = [n for n in body if not isinstance(n.structure, Leaf)] or [node]
        loc = node.loc or next((n.loc for n in reversed(inner) if n.loc), None)
        ops = tuple(n.op.name for n in inner if not is_view(n.structure, n)) or (inner[-1].op.name,)
        origins[name] = KernelOrigin(ops, loc, frozenset((n.name or n.op.name, n.loc) for n in inner))
    return origins


# the profile


@dataclass(frozen=True)
class KernelTime(StepProfile):
    """Totals of one kernel over all its runs in one call, and the origin of its first step."""

    origin: KernelOrigin = KernelOrigin()


@dataclass(frozen=True)
class Profile:
    """Times of the steps of one call, in order; prints as a table of kernels, the slowest first."""

    steps: tuple[tuple[StepProfile, KernelOrigin], ...]

    @property
    def seconds(self) -> float:
        """Total time of the steps."""
        return sum(p.seconds for p, _ in self.steps)

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """Totals by kernel, the slowest first; a kernel with several origins shows the first."""
        rows = []
        for name in dict.fromkeys(p.name for p, _ in self.steps):
            steps = [step for step in self.steps if step[0].name == name]
            first, origin = steps[0]
            seconds, flops, size, runs = (
                sum(getattr(p, f) for p, _ in steps) for f in ("seconds", "flops", "bytes", "runs")
            )
            rows.append(KernelTime(name, first.node, seconds, flops, size, runs, first.dtypes, origin))
        return tuple(sorted(rows, key=lambda k: -k.seconds))

    def percent_of_time(self, kernel: KernelTime) -> float:
        """Return the share of the total time that a kernel takes, in percent."""
        return 100 * kernel.seconds / (self.seconds or 1.0)

    def table(self) -> Table:
        """Return the kernels as a rich table."""
        title = f"{self.seconds * 1e3:.3f} ms in {len(self.steps)} steps"
        rows = table(title, ["kernel", "computes in"], ["runs", "ms", "share", "GFLOP/s", "GB/s"], ["ops", "line"])
        for k in self.kernels:
            rates = (f"{k.gflops:.1f}", f"{k.gbytes_per_second:.1f}") if k.bytes else ("", "")
            cells = (
                k.name,
                k.dtypes,
                f"{k.runs}",
                f"{k.seconds * 1e3:.4f}",
                f"{self.percent_of_time(k):.1f} %",
                *rates,
            )
            rows.add_row(*cells, *_origin_cells(k.origin))
        return rows

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return render_plain(self)


def _origin_cells(origin: KernelOrigin) -> tuple[Text, Text]:
    return truncated_text(abbreviate(origin.ops)), truncated_text(format_location(origin.loc))


# the report


@dataclass(frozen=True)
class KernelReport:
    """One kernel: origin, launches in a call, operations and bytes of a launch, text before and after the tile passes, dtypes."""

    name: str
    origin: KernelOrigin
    launches: int
    flops: int
    bytes: int
    lowered: str
    scheduled: str
    dtypes: str
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class BufferPlacement:
    """A buffer of the workspace: its lifetime in steps and its offset in bytes."""

    name: str
    type: str
    lifetime: Lifetime
    offset: int


@dataclass(frozen=True)
class Report:
    """Report of one compilation; prints in a terminal, and `save` writes a self-contained HTML page.

    There are several `programs` if the graph is partitioned at data-dependent shapes.  `texts` is the IR of each stage.
    """

    title: str
    programs: tuple[tuple[Stages, Executable], ...]
    compile_seconds: dict[str, float]
    profile: Profile | None = None
    texts: dict[str, str] = field(default_factory=dict)
    opaque_calls: tuple[Remark, ...] = ()
    """A remark for each operator that runs in PyTorch."""

    @cached_property
    def kernels(self) -> tuple[KernelReport, ...]:
        """Distinct kernels, in the order of their first launch."""
        return tuple(k for stages, _ in self.programs for k in kernel_reports(stages))

    @property
    def steps(self) -> int:
        """Number of steps of one call."""
        return sum(len(stages.scheduled.steps) for stages, _ in self.programs)

    @property
    def remarks(self) -> list[Remark]:
        """Remarks of the import and of all passes."""
        return [*self.opaque_calls, *(r for stages, _ in self.programs for r in stages.context.remarks)]

    @property
    def target(self) -> Target:
        return self.programs[-1][1].target

    @cached_property
    def largest_program(self) -> tuple[Stages, Executable]:
        """Program with the largest workspace."""
        return max(self.programs, key=lambda program: program[1].memory_plan.size)

    @property
    def memory_plan(self) -> MemoryPlan:
        """Memory plan of the largest program."""
        return self.largest_program[1].memory_plan

    @cached_property
    def layouts(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the buffers that are not row-major."""
        buffers = [item for stages, _ in self.programs for item in stages.scheduled.buffers.items()]
        return tuple((name, str(t)) for name, t in buffers if t.layout)

    @cached_property
    def placements(self) -> tuple[BufferPlacement, ...]:
        """Placement of each buffer in the workspace of `memory_plan`."""
        program = self.largest_program[0].scheduled
        offsets = self.memory_plan.offsets
        live = lifetimes(program, list(offsets))
        return tuple(BufferPlacement(n, str(program.buffers[n]), live[n], offsets[n]) for n in offsets if n in live)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        phases = ", ".join(f"{phase} {s:.2f} s" for phase, s in self.compile_seconds.items() if phase != "total")
        yield f"[bold]{escape(self.title)}[/bold] compiled in {self.compile_seconds['total']:.2f} s: {phases}"
        size, without_reuse = (format_bytes(n) for n in (self.memory_plan.size, self.memory_plan.size_without_reuse))
        yield f"workspace {size} ({without_reuse} without buffer reuse), {len(self.layouts)} packed constants\n"
        yield self.profile or self.table()
        for r in self.opaque_calls:
            yield escape(f"{r.message} ({format_location(r.loc)})" if r.loc else r.message)

    def table(self) -> Table:
        """Return the kernels as a rich table."""
        rows = table(f"{len(self.kernels)} distinct kernels", ["kernel"], ["runs", "MFLOP", "MB"], ["ops", "line"])
        for k in self.kernels:
            cells = (k.name, f"{k.launches}", f"{k.flops / 1e6:.2f}", f"{k.bytes / 1e6:.2f}")
            rows.add_row(*cells, *_origin_cells(k.origin))
        return rows

    def __str__(self) -> str:
        return render_plain(self)

    def html(self) -> str:
        """Return the report as one self-contained HTML page."""
        import jinja2

        loader = jinja2.FileSystemLoader(Path(__file__).parent)
        templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        templates.filters |= {"bytes": format_bytes, "ir": highlight, "summary": abbreviate, "loc": format_location}
        return templates.get_template("report.html").render(report=self, chart=memory_chart(self))

    def save(self, path: str | Path) -> Path:
        """Write the HTML page to `path`, and return the path."""
        file = Path(path)
        file.write_text(self.html(), encoding="utf-8")
        return file


def kernel_reports(stages: Stages) -> list[KernelReport]:
    """Return the reports of the distinct kernels of one program, in the order of their first launch."""
    lowered, scheduled = stages.lowered, stages.scheduled
    origins = kernel_origins(stages.fused)
    launches = [(s, count) for s, count in execution_counts(scheduled.steps) if isinstance(s, Launch)]
    reports = []
    for name in dict.fromkeys(s.kernel for s, _ in launches):
        same = [(s, count) for s, count in launches if s.kernel == name]
        before, after = lowered.kernels[name], scheduled.kernels[name]
        origin = origins.get(same[0][0].node, KernelOrigin())
        remarks = (r for r in stages.context.remarks if r.kernel == name or (r.node, r.loc) in origin.values)
        distinct = {(r.pass_, r.kind, r.message): r for r in remarks}
        work = sum(count for _, count in same), count_flops(before), count_bytes(before)
        texts = print_kernel(before), print_kernel(after)
        reports.append(KernelReport(name, origin, *work, *texts, arithmetic_dtypes(after), tuple(distinct.values())))
    return reports


TOKEN_PATTERN = re.compile(
    r"(?P<c>//[^\n]*)|(?P<v>%(?:&quot;.*?&quot;|[\w.]+))|(?P<g>@(?:&quot;.*?&quot;|[\w.]+))"
    r"|\b(?P<k>graph|kernel|program|return|parallel|for|in|out|inout|const|scratch|tile|lanes|unroll|accumulators|balanced|reduce|yield|store"
    r"|nontemporal|local|check|prefetch|launch|copy|view|repeat)\b"
    rf"|\b(?P<t>(?:{'|'.join((*KERNEL_DTYPES, *PACKED_DTYPES))})\[[^\]]*\](?:\{{[^}}]*\}})?)"
)
"""Tokens of IR text after HTML escaping; the group is the class in report.html: comment, value, global, keyword, type."""


def highlight(text: str) -> Any:
    """Convert IR text to HTML with names, types, keywords and comments marked."""
    from markupsafe import Markup

    def mark(m: re.Match[str]) -> str:
        return f'<i class="{m.lastgroup}">{m[0]}</i>'

    return Markup(TOKEN_PATTERN.sub(mark, html.escape(text)))


@dataclass(frozen=True)
class Bar:
    """A rectangle of the memory chart, in percent of the chart's width and height; `hue` in degrees."""

    x: float
    y: float
    width: float
    height: float
    hue: int
    label: str


def memory_chart(report: Report) -> list[Bar]:
    """Draw the workspace, with steps from left to right and addresses from top to bottom."""
    count = max(1, len(report.largest_program[0].scheduled.steps))
    total = max(1, report.memory_plan.size)
    return [
        Bar(
            100 * b.lifetime.first / count,
            100 * b.offset / total,
            100 * (b.lifetime.last - b.lifetime.first + 1) / count,
            100 * b.lifetime.size / total,
            (k * 47) % 360,
            f"%{b.name}: {b.type}, {format_bytes(b.lifetime.size)} at {b.offset}, steps {b.lifetime.first}-{b.lifetime.last}",
        )
        for k, b in enumerate(report.placements)
    ]


def program_totals(program: Program) -> tuple[int, int, int]:
    """Return the number of steps executed, arithmetic operations and bytes of one run of `program`."""
    steps = list(execution_counts(program.steps))
    launches = [(program.kernels[s.kernel], count) for s, count in steps if isinstance(s, Launch)]
    flops = sum(count * count_flops(k) for k, count in launches)
    return sum(count for _, count in steps), flops, sum(count * count_bytes(k) for k, count in launches)
