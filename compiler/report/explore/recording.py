"""Recording of a compilation: the IR before and after each pass, as far as it comes."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.backend import target_by_name
from compiler.driver.variant import scheduler
from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.text.ir_text import AnyIR
from compiler.ir.tile.kernel import Kernel
from compiler.options import Options
from compiler.passes.base import Context
from compiler.passes.instrument import PassRecorder, PassRun
from compiler.pipeline import Stages, lower_and_schedule
from compiler.report.explore.origins import OriginTable
from compiler.target import Target


@dataclass(frozen=True)
class RecordedCompilation:
    """Runs of passes over a graph with traced origins; `stages` is None and `error` says why if one failed."""

    graph: Graph
    target: Target
    runs: tuple[PassRun, ...]
    context: Context
    stages: Stages | None = None
    error: TilewrightError | None = None

    def runs_over(self, kind: type[AnyIR]) -> list[PassRun]:
        """Return the runs over graphs, programs, or kernels."""
        return [r for r in self.runs if isinstance(r.before, kind)]

    def kernel_runs(self) -> dict[str, list[PassRun]]:
        """Return the runs over each kernel by its name."""
        runs: dict[str, list[PassRun]] = {}
        for r in self.runs_over(Kernel):
            runs.setdefault(r.before.name, []).append(r)
        return runs


def record(graph: Graph, options: Options, origins: OriginTable, part: int = 0) -> RecordedCompilation:
    """Run all passes over `graph` as a compilation does, and record them; TargetError for an unknown target.

    `origins` takes the nodes of the graph, which is this `part` of a program.
    """
    target = target_by_name(options.target, options.machine)
    traced = origins.trace(graph, part)
    recorder, error = PassRecorder(), None
    stages: Stages | None = None
    try:
        stages = lower_and_schedule(traced, options, [recorder], scheduler(target, options))
    except TilewrightError as stopped:
        error = stopped
    return RecordedCompilation(traced, target, tuple(recorder.runs), recorder.context, stages, error)
