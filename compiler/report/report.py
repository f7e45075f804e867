"""What one compilation made: kernels and why they are what they are, layouts, memory, times, and the IR of every stage."""

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

from compiler.codegen.target import Target
from compiler.cost.estimates import count_bytes, count_flops
from compiler.errors import Loc
from compiler.ir.graph.graph import Graph, unique_names
from compiler.ir.graph.structure import Fused, Leaf, Recurrence, is_view
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.program import Launch, Program, execution_counts
from compiler.passes.remark import Remark
from compiler.pipeline import Stages
from compiler.report.render import abbreviate, format_bytes, format_location, render_plain, table, truncated_text
from compiler.runtime.executable import Executable
from compiler.runtime.memory import Lifetime, MemoryPlan, lifetimes
from compiler.runtime.profile import StepProfile


@dataclass(frozen=True)
class KernelOrigin:
    """Where a kernel comes from: the ops it fuses (views left out, unless there is nothing else) and the user's line.

    `values` are all values inside it, by name and line.
    """

    ops: tuple[str, ...] = ()
    loc: Loc | None = None
    values: frozenset[tuple[str, Loc | None]] = frozenset()


def kernel_origins(fused: Graph) -> dict[str, KernelOrigin]:
    """The source of each node of a fused graph, by the name its step carries."""
    found: dict[str, KernelOrigin] = {}
    for node, name in unique_names(fused.nodes).items():
        if isinstance(node.structure, Recurrence):
            found |= {f"{name}.{inner}": source for inner, source in kernel_origins(node.attrs["body"]).items()}
            continue
        body = node.attrs["body"].nodes if isinstance(node.structure, Fused) else (node,)
        inner = [n for n in body if not isinstance(n.structure, Leaf)] or [node]
        loc = node.loc or next((n.loc for n in reversed(inner) if n.loc), None)
        ops = tuple(n.op.name for n in inner if not is_view(n.structure, n)) or (inner[-1].op.name,)
        found[name] = KernelOrigin(ops, loc, frozenset((n.name or n.op.name, n.loc) for n in inner))
    return found


# the profile


@dataclass(frozen=True)
class KernelTime:
    """All runs of one kernel in one call: their number, seconds together, arithmetic operations and bytes together."""

    name: str
    origin: KernelOrigin
    runs: int
    seconds: float
    flops: int
    bytes: int

    @property
    def gflops(self) -> float:
        """10^9 operations per second."""
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes_per_second(self) -> float:
        """10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """The time of each step of one call, in order; renders as a table of kernels, the dearest first."""

    steps: tuple[tuple[StepProfile, KernelOrigin], ...]

    @property
    def seconds(self) -> float:
        """The steps' times together."""
        return sum(p.seconds for p, _ in self.steps)

    @cached_property
    def kernels(self) -> tuple[KernelTime, ...]:
        """The steps by kernel, the dearest first; a kernel that several lines share names the first."""
        found = []
        for name in dict.fromkeys(p.name for p, _ in self.steps):
            same = [p for p, _ in self.steps if p.name == name]
            source = next(source for p, source in self.steps if p.name == name)
            sums = (sum(getattr(p, what) for p in same) for what in ("runs", "seconds", "flops", "bytes"))
            found.append(KernelTime(name, source, *sums))
        return tuple(sorted(found, key=lambda k: -k.seconds))

    def percent_of_time(self, kernel: KernelTime) -> float:
        """The percentage of the time that a kernel takes."""
        return 100 * kernel.seconds / (self.seconds or 1.0)

    def table(self) -> Table:
        """The kernels as a rich table."""
        title = f"{self.seconds * 1e3:.3f} ms in {len(self.steps)} steps"
        made = table(title, ["kernel"], ["runs", "ms", "share", "GFLOP/s", "GB/s"], ["ops", "line"])
        for k in self.kernels:
            rates = (f"{k.gflops:.1f}", f"{k.gbytes_per_second:.1f}") if k.bytes else ("", "")
            row = (k.name, f"{k.runs}", f"{k.seconds * 1e3:.4f}", f"{self.percent_of_time(k):.1f} %", *rates)
            made.add_row(*row, truncated_text(abbreviate(k.origin.ops)), truncated_text(format_location(k.origin.loc)))
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table()

    def __str__(self) -> str:
        return render_plain(self)


# the report


@dataclass(frozen=True)
class KernelReport:
    """One kernel: what it fuses, how often it runs, what a run computes and moves, its text before and after the tile passes."""

    name: str
    origin: KernelOrigin
    launches: int
    flops: int
    bytes: int
    lowered: str
    scheduled: str
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class BufferPlacement:
    """A buffer of the workspace: when it lives, in steps, and where it lies, in bytes."""

    name: str
    type: str
    lifetime: Lifetime
    offset: int


@dataclass(frozen=True)
class Report:
    """One compilation as data; renders in a terminal, `save` writes a self-contained HTML page.

    There are several `programs` where data decides sizes between them.
    """

    title: str
    programs: tuple[tuple[Stages, Executable], ...]
    compile_seconds: dict[str, float]
    profile: Profile | None = None
    texts: dict[str, str] = field(default_factory=dict)

    @cached_property
    def kernels(self) -> tuple[KernelReport, ...]:
        """Every distinct kernel, in order of its first launch."""
        return tuple(k for stages, _ in self.programs for k in kernel_reports(stages))

    @property
    def steps(self) -> int:
        """The steps of one call."""
        return sum(len(stages.scheduled.steps) for stages, _ in self.programs)

    @property
    def remarks(self) -> list[Remark]:
        """What the passes did and left alone, and why."""
        return [r for stages, _ in self.programs for r in stages.context.remarks]

    @property
    def target(self) -> Target:
        return self.programs[-1][1].target

    @cached_property
    def largest_program(self) -> tuple[Stages, Executable]:
        """The program with the largest workspace."""
        return max(self.programs, key=lambda program: program[1].memory_plan.size)

    @property
    def memory_plan(self) -> MemoryPlan:
        """The workspace of the largest program."""
        return self.largest_program[1].memory_plan

    @cached_property
    def layouts(self) -> tuple[tuple[str, str], ...]:
        """Buffers whose elements do not lie in row-major order: name and type."""
        buffers = [item for stages, _ in self.programs for item in stages.scheduled.buffers.items()]
        return tuple((name, str(t)) for name, t in buffers if t.layout)

    @cached_property
    def placements(self) -> tuple[BufferPlacement, ...]:
        """The workspace of `plan`, buffer by buffer."""
        program = self.largest_program[0].scheduled
        lives = lifetimes(program, list(self.memory_plan.offsets))
        return tuple(
            BufferPlacement(n, str(program.buffers[n]), lives[n], at)
            for n, at in self.memory_plan.offsets.items()
            if n in lives
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = ", ".join(
            f"{part} {seconds:.2f} s" for part, seconds in self.compile_seconds.items() if part != "total"
        )
        yield f"[bold]{escape(self.title)}[/bold] compiled in {self.compile_seconds['total']:.2f} s: {parts}"
        plan = self.memory_plan
        packed = f"{len(self.layouts)} packed constants"
        yield f"workspace {format_bytes(plan.size)} ({format_bytes(plan.size_without_reuse)} if no two buffers shared memory), {packed}\n"
        yield self.profile or self.table()

    def table(self) -> Table:
        """The kernels as a rich table."""
        made = table(f"{len(self.kernels)} distinct kernels", ["kernel"], ["runs", "MFLOP", "MB"], ["ops", "line"])
        for k in self.kernels:
            row = (k.name, f"{k.launches}", f"{k.flops / 1e6:.2f}", f"{k.bytes / 1e6:.2f}")
            made.add_row(*row, truncated_text(abbreviate(k.origin.ops)), truncated_text(format_location(k.origin.loc)))
        return made

    def __str__(self) -> str:
        return render_plain(self)

    def html(self) -> str:
        """The report as one HTML page without outside parts."""
        import jinja2

        loader = jinja2.FileSystemLoader(Path(__file__).parent)
        space = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        space.filters |= {"size": format_bytes, "ir": highlight, "summary": abbreviate, "place": format_location}
        return space.get_template("report.html").render(report=self, chart=memory_chart(self))

    def save(self, path: str | Path) -> Path:
        """Write the HTML page to `path`."""
        target = Path(path)
        target.write_text(self.html(), encoding="utf-8")
        return target


def kernel_reports(stages: Stages) -> list[KernelReport]:
    """Every distinct kernel of one program, in order of its first launch."""
    lowered, scheduled = stages.lowered, stages.scheduled
    known = kernel_origins(stages.fused)
    launches = [(s, times) for s, times in execution_counts(scheduled.steps) if isinstance(s, Launch)]
    found = []
    for name in dict.fromkeys(s.kernel for s, _ in launches):
        same = [(s, times) for s, times in launches if s.kernel == name]
        before, after = lowered.kernels[name], scheduled.kernels[name]
        source = known.get(same[0][0].node, KernelOrigin())
        told = (r for r in stages.context.remarks if r.kernel == name or (r.node, r.loc) in source.values)
        distinct = {(r.pass_, r.kind, r.message): r for r in told}
        work = sum(times for _, times in same), count_flops(before), count_bytes(before)
        texts = print_kernel(before), print_kernel(after)
        found.append(KernelReport(name, source, *work, *texts, tuple(distinct.values())))
    return found


TOKEN_PATTERN = re.compile(
    r"(?P<c>//[^\n]*)|(?P<v>%(?:&quot;.*?&quot;|[\w.]+))|(?P<g>@(?:&quot;.*?&quot;|[\w.]+))"
    r"|\b(?P<k>graph|kernel|program|return|parallel|for|in|out|inout|const|tile|lanes|unroll|chains|reduce|yield|store|local|check|launch|copy)\b"
    r"|\b(?P<t>(?:f64|f32|f16|bf16|i64|i32|i16|i8|u8|bool)\[[^\]]*\](?:\{[^}]*\})?)"
)


def highlight(text: str) -> Any:
    """IR text as HTML with names, types and keywords marked."""
    from markupsafe import Markup

    def mark(m: re.Match[str]) -> str:
        return f'<i class="{m.lastgroup}">{m[0]}</i>'

    return Markup(TOKEN_PATTERN.sub(mark, html.escape(text)))


@dataclass(frozen=True)
class Bar:
    """A rectangle of the memory chart, in percent of its width and height."""

    x: float
    y: float
    width: float
    height: float
    hue: int
    label: str


def memory_chart(report: Report) -> list[Bar]:
    """The workspace drawn with steps from left to right and addresses from top to bottom."""
    count = max(1, len(report.largest_program[0].scheduled.steps))
    whole = max(1, report.memory_plan.size)
    return [
        Bar(
            100 * b.lifetime.first / count,
            100 * b.offset / whole,
            100 * (b.lifetime.last - b.lifetime.first + 1) / count,
            100 * b.lifetime.size / whole,
            (k * 47) % 360,
            f"%{b.name}: {b.type}, {format_bytes(b.lifetime.size)} at {b.offset}, steps {b.lifetime.first}-{b.lifetime.last}",
        )
        for k, b in enumerate(report.placements)
    ]


def program_totals(program: Program) -> tuple[int, int, int]:
    """Launches, arithmetic operations and bytes of one run of `program`."""
    done = list(execution_counts(program.steps))
    work = [(program.kernels[s.kernel], times) for s, times in done if isinstance(s, Launch)]
    flops, moved = (sum(times * count(k) for k, times in work) for count in (count_flops, count_bytes))
    return sum(times for _, times in done), flops, moved
