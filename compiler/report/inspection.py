"""Inspection of compiled code: the IR of its stages, remarks, work, a profile and a report."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch

from compiler.analysis.opaque_calls import opaque_operators
from compiler.codegen.backend import backend_of, code_text
from compiler.driver.compiled_graph import ExecutedProgram
from compiler.driver.partitioned_graph import AnyCompiled
from compiler.driver.variant import require_executable
from compiler.errors import ArgumentError
from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_printer import print_graph
from compiler.ir.text.tile_printer import print_program
from compiler.passes.remark import Remark, Remarks, format_seconds
from compiler.pipeline import Stages
from compiler.report.explore.page import save_page
from compiler.report.explore.page_builder import PageBuilder
from compiler.report.measure import Workload
from compiler.report.profile import Profile, measure_profile
from compiler.report.report import Report, program_totals
from compiler.runtime.executable import Executable

IR_STAGES = ("imported", "fused", "lowered", "scheduled")
"""Stages of `print_ir` that every target has; its backend adds others: "llvm" and "assembly", or "triton"."""


SCHEDULES = "schedules"
"""Stage of `print_ir` that is no IR: the schedule of each kernel."""


class Inspection(ABC):
    """Questions about a compiled graph; answers are for the example tensors, or the inputs of the last profile."""

    def __init__(self, compiled_graph: AnyCompiled, frontend_seconds: Mapping[str, float]) -> None:
        self.compiled_graph, self._frontend_seconds = compiled_graph, dict(frontend_seconds)

    @abstractmethod
    def example_tensors(self) -> Sequence[torch.Tensor]:
        """Return inputs of the graph."""

    @cached_property
    def _executed_programs(self) -> list[ExecutedProgram]:
        return self.compiled_graph.executed_programs(self.example_tensors())

    @property
    def stages(self) -> Stages:
        """The IR of every stage; of a partitioned graph, its last part's."""
        return self._last_program.stages

    @property
    def executable(self) -> Executable:
        """The native program for the same sizes; TargetError where this machine cannot run it."""
        return require_executable(self._last_program.variant, self._last_program.executable)

    @property
    def runs_here(self) -> bool:
        """True if this machine can run all of the compiled programs."""
        return all(p.executable for p in self._executed_programs)

    @property
    def _last_program(self) -> ExecutedProgram:
        if not self._executed_programs:
            raise ArgumentError("nothing is compiled: all of it runs in PyTorch")
        return self._executed_programs[-1]

    @property
    def remarks(self) -> Remarks:
        """Operators left to PyTorch, and the decisions of the passes, with their reasons."""
        return Remarks(
            [*self._opaque_remarks, *(r for program in self._executed_programs for r in program.stages.context.remarks)]
        )

    @property
    def _opaque_remarks(self) -> tuple[Remark, ...]:
        """A remark for each operator that runs in PyTorch in any case; the pass decompose leaves one for each that it may expand."""
        return tuple(
            Remark("import", "missed", f"{o.operator} runs in PyTorch: {o.reason}", o.loc, o.node)
            for o in opaque_operators(self.compiled_graph.graph.outputs, expandable=False)
        )

    @property
    def compile_seconds(self) -> dict[str, float]:
        """Seconds spent on each step of compiling, and their "total"."""
        parts = {**self._frontend_seconds, **self.compiled_graph.compile_seconds}
        return {**parts, "total": sum(parts.values())}

    @property
    def workload(self) -> Workload:
        """Kernels, arithmetic operations and bytes of one call."""
        totals = [program_totals(program.stages.lowered) for program in self._executed_programs]
        return Workload(*(sum(t[k] for t in totals) for k in range(3)))

    def print_ir(self, stage: str = "fused") -> str:
        """Return the text of a stage: "imported", "fused" (Graph IR), "lowered", "scheduled" (Tile IR), or code.

        Code is "llvm" and "assembly" for CPUs, "triton" for GPUs.  "schedules" are the decisions about each kernel, to be edited and
        given back as `Options(schedules=...)`.  The texts of a partitioned graph follow one another.
        """
        if stage == SCHEDULES:
            recorded = (program.variant.record_schedules() for program in self._executed_programs)
            return "\n".join(str(schedule) for schedules in recorded for schedule in schedules.values())
        return "\n".join(_stage_text(stage, program.stages) for program in self._executed_programs)

    def profile_inputs(self, inputs: Sequence[torch.Tensor], repeats: int = 20) -> Profile:
        """Return the time of every kernel in calls with these inputs of the graph.

        The calls into PyTorch between parts of a program are part of the whole call alone.
        """
        self._executed_programs = self.compiled_graph.executed_programs(inputs)
        return measure_profile(self.compiled_graph.run, inputs, self._executed_programs, repeats)

    def report_for(self, measured: Profile | None) -> Report:
        """Return kernels, remarks, memory and times of this compilation."""
        programs = tuple((p.stages, p.executable) for p in self._executed_programs)
        return Report(self.compiled_graph.graph.name, programs, self.compile_seconds, measured, self._opaque_remarks)

    def explore(self, path: str | os.PathLike[str], repeats: int = 20) -> Path:
        """Write a page that shows this compilation step by step, measured in `repeats` calls if it runs here; return its path."""
        page = PageBuilder(self.compiled_graph.graph.name)
        self.add_to_page(page, "default", repeats)
        return save_page(page.page(), path)

    def add_to_page(self, page: PageBuilder, name: str, repeats: int) -> None:
        """Add this compilation to a page under construction, as the way `name`."""
        profile = self.profile_inputs(self.example_tensors(), repeats) if self.runs_here else None
        facts = {f"{phase}": f"{s:.2f} s" for phase, s in self.compile_seconds.items()}
        if profile:
            facts |= {
                "fastest call": format_seconds(profile.call.minimum),
                "spread": f"{100 * profile.call.spread:.0f} %",
            }
        if profile and profile.warning:
            facts["warning"] = profile.warning
        page.add_compiled(name, self.compiled_graph.options, self._executed_programs, profile, facts)

    def _repr_html_(self) -> str:
        return self.report_for(None)._repr_html_()

    def __repr__(self) -> str:
        return f"<compiled {self.compiled_graph.graph.name}: {self.workload.kernels} kernels>"


def _stage_text(stage: str, stages: Stages) -> str:
    """Return the text of a stage of one program; ArgumentError for a stage that its target does not have."""
    listings = backend_of(stages.target).listings
    if stage in listings:
        return "\n".join(code_text(kernel, stage, stages.target) for kernel in stages.scheduled.kernels.values())
    if stage not in IR_STAGES:
        raise ArgumentError(
            f"there is no stage {stage!r}; choose one of {', '.join((*IR_STAGES, SCHEDULES, *listings))}"
        )
    ir = getattr(stages, stage)
    return print_graph(ir) if isinstance(ir, Graph) else print_program(ir)
