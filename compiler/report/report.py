"""Report of one compilation: kernels and remarks, memory plan and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table

from compiler.analysis.arithmetic_dtypes import arithmetic_dtypes
from compiler.analysis.kernel_origin import KernelOrigin, kernel_origins, merge_origins
from compiler.codegen.triton.targets import GPUTarget
from compiler.cost.estimates import count_bytes, count_flops
from compiler.ir.text.tile_printer import print_kernel
from compiler.ir.tile.program import Launch, Program, execution_counts
from compiler.passes.remark import Remark
from compiler.pipeline import Stages
from compiler.report.gpu_kernels import GPUKernelReport, gpu_kernel_reports, gpu_kernel_table
from compiler.report.page import table_html
from compiler.report.profile import Profile, origin_cells
from compiler.report.remark_groups import RemarkGroup, group_remarks
from compiler.report.render import PLAIN_WIDTH, format_bytes, format_location, render_plain, table
from compiler.runtime.executable import Executable
from compiler.runtime.memory import MemoryPlan


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
class Report:
    """Report of one compilation, as text; `explore` writes a page.

    There are several `programs` if the graph is partitioned at data-dependent shapes; an executable is None where this machine cannot run it.
    """

    title: str
    programs: tuple[tuple[Stages, Executable | None], ...]
    compile_seconds: dict[str, float]
    profile: Profile | None = None
    opaque_calls: tuple[Remark, ...] = ()
    """A remark for each operator that runs in PyTorch."""

    @cached_property
    def kernels(self) -> tuple[KernelReport, ...]:
        """Distinct kernels, in the order of their first launch."""
        return tuple(
            k for stages, exe in self.programs for k in kernel_reports(stages, exe.size_values if exe else None)
        )

    @cached_property
    def gpu_kernels(self) -> tuple[GPUKernelReport, ...]:
        """Kernels for a GPU, compiled for it whether it is here or not; none for a CPU."""
        targets = ((stages.scheduled, stages.target) for stages, _ in self.programs)
        return tuple(k for p, target in targets if isinstance(target, GPUTarget) for k in gpu_kernel_reports(p, target))

    @property
    def remarks(self) -> list[Remark]:
        """Remarks of the import and of all passes."""
        return [*self.opaque_calls, *(r for stages, _ in self.programs for r in stages.context.remarks)]

    @cached_property
    def remark_groups(self) -> list[RemarkGroup]:
        """Remarks with repeated ones together, those that cost most time first."""
        seconds = {k.name: k.seconds for k in self.profile.kernels} if self.profile else {}
        return group_remarks(self.remarks, {k.name: k.origin for k in self.kernels}, seconds)

    @property
    def memory_plan(self) -> MemoryPlan | None:
        """Memory plan of the program with the largest workspace; None if none can run here."""
        plans = (exe.memory_plan for _, exe in self.programs if exe)
        return max(plans, key=lambda plan: plan.size, default=None)

    @property
    def packed_buffers(self) -> int:
        """Number of the buffers that are not row-major."""
        return sum(bool(t.layout) for stages, _ in self.programs for t in stages.scheduled.buffers.values())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        phases = ", ".join(f"{phase} {s:.2f} s" for phase, s in self.compile_seconds.items() if phase != "total")
        yield f"[bold]{escape(self.title)}[/bold] compiled in {self.compile_seconds['total']:.2f} s: {phases}"
        if plan := self.memory_plan:
            size, without_reuse = (format_bytes(n) for n in (plan.size, plan.size_without_reuse))
            yield f"workspace {size} ({without_reuse} without buffer reuse), {self.packed_buffers} packed constants\n"
        yield self.profile or self.table()
        if self.gpu_kernels:
            yield self.gpu_table()
        for r in self.opaque_calls:
            yield escape(f"{r.message} ({format_location(r.loc)})" if r.loc else r.message)

    def table(self) -> Table:
        """Return the kernels as a rich table."""
        rows = table(f"{len(self.kernels)} distinct kernels", ["kernel"], ["runs", "MFLOP", "MB"], ["ops", "line"])
        for k in self.kernels:
            cells = (k.name, f"{k.launches}", f"{k.flops / 1e6:.2f}", f"{k.bytes / 1e6:.2f}")
            rows.add_row(*cells, *origin_cells(k.origin))
        return rows

    def gpu_table(self) -> Table:
        """Return what the kernels for a GPU take of a multiprocessor, as a rich table."""
        return gpu_kernel_table(self.gpu_kernels, self.programs[0][0].target.name)

    def __str__(self) -> str:
        return render_plain(self, PLAIN_WIDTH)

    def _repr_html_(self) -> str:
        kernels = self.profile._repr_html_() if self.profile else str(table_html(self.table()))
        return kernels + str(table_html(self.gpu_table())) if self.gpu_kernels else kernels


def kernel_reports(stages: Stages, sizes: Mapping[str, int] | None = None) -> list[KernelReport]:
    """Return the reports of the distinct kernels of one program, in the order of their first launch.

    `sizes` gives the values of dynamic sizes, by default their hints.
    """
    lowered, scheduled = stages.lowered, stages.scheduled
    origins = kernel_origins(stages.fused)
    lowered_by_node = {s.node: s.kernel for s, _ in execution_counts(lowered.steps) if isinstance(s, Launch)}
    launches = [(s, count) for s, count in execution_counts(scheduled.steps) if isinstance(s, Launch)]
    reports = []
    for name in dict.fromkeys(s.kernel for s, _ in launches):
        same = [(s, count) for s, count in launches if s.kernel == name]
        after = scheduled.kernels[name]
        source = name if name in lowered.kernels else lowered_by_node.get(same[0][0].node, "")
        before = lowered.kernels.get(source, after)  # `layout` copies kernels, and adds some that transpose
        origin = merge_origins(origins.get(s.node, KernelOrigin()) for s, _ in same)
        remarks = (r for r in stages.context.remarks if r.kernel == name or (r.node, r.loc) in origin.values)
        distinct = {(r.pass_, r.kind, r.message): r for r in remarks}
        work = sum(count for _, count in same), count_flops(before, sizes), count_bytes(before, sizes)
        texts = print_kernel(before), print_kernel(after)
        reports.append(KernelReport(name, origin, *work, *texts, arithmetic_dtypes(after), tuple(distinct.values())))
    return reports


def program_totals(program: Program) -> tuple[int, int, int]:
    """Return the number of steps executed, arithmetic operations and bytes of one run of `program`."""
    steps = list(execution_counts(program.steps))
    launches = [(program.kernels[s.kernel], count) for s, count in steps if isinstance(s, Launch)]
    flops = sum(count * count_flops(k) for k, count in launches)
    return sum(count for _, count in steps), flops, sum(count * count_bytes(k) for k, count in launches)
