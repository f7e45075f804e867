"""A page from compilations of one model in several ways, those that failed too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from compiler import __version__
from compiler.driver.compiled_graph import ExecutedProgram
from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.tile.program import execution_counts
from compiler.options import Options
from compiler.report.explore.origins import OriginTable
from compiler.report.explore.page_data import (
    Origin,
    Page,
    PageWay,
    SourceFile,
    Steps,
)
from compiler.report.explore.recording import record
from compiler.report.explore.way_builder import WayBuilder
from compiler.report.profile import Profile
from compiler.report.trace import trace_events

SOURCE_MARGIN = 6
"""Lines of the user's program shown around those that became nodes."""


@dataclass
class PageBuilder:
    """A page under construction: ways to compile one model, whose nodes share one table of origins."""

    title: str
    origins: OriginTable = field(default_factory=OriginTable)
    ways: list[PageWay] = field(default_factory=list)

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
            sizes = p.executable.size_values if p.executable else {}
            call = profile.call.median if profile else None
            self.ways.append(WayBuilder(label, recording, options, sizes, seconds, facts).build(trace, call))

    def add_failed(self, name: str, options: Options, graph: Graph, error: TilewrightError) -> None:
        """Add a way that did not compile: as much as its passes did before the error."""
        recording = record(graph, options, self.origins)
        self.ways.append(WayBuilder(name, recording, options, error=str(error)).build([], None))

    def add_rejected(self, name: str, options: Options, program: str, error: TilewrightError) -> None:
        """Add a way whose import failed: the text of the exported program."""
        self.ways.append(PageWay(name, options.target, Steps(program.splitlines(), []), error=str(error)))

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
