"""File format of a failing graph: the graph's text, and comments that say how to reproduce the failure.

# inputs 17
# configurations fused x86-64-v3
# mismatch (fused x86-64-v3): output 0: 1 of 4 elements are wrong; ...
graph @fuzz17(%x0: f32[4]) { ... }
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.testing.fuzz.check import CONFIGURATIONS, KNOWN_CONFIGURATIONS, CheckOutcome, Failure, check_graph


@dataclass(frozen=True)
class FuzzCase:
    """A graph, the seed of its inputs, and the names of configurations to run it in (none: all)."""

    graph: Graph
    seed: int
    configurations: tuple[str, ...] = ()
    failure_summary: str = ""

    def check(self) -> CheckOutcome:
        """Run the case; configurations that this machine lacks are skipped."""
        known = [KNOWN_CONFIGURATIONS[c] for c in self.configurations if c in KNOWN_CONFIGURATIONS]
        available = [c for c in known if not c.missing_features]
        return check_graph(self.graph, self.seed, available or tuple(CONFIGURATIONS.values()))

    def with_failure(self, failure: Failure) -> FuzzCase:
        """Return the case with the configuration and the message of `failure`."""
        names = (failure.configuration,) if failure.configuration in KNOWN_CONFIGURATIONS else self.configurations
        return FuzzCase(self.graph, self.seed, names, str(failure).split("\n")[0][:200])

    def __str__(self) -> str:
        lines = [f"# inputs {self.seed}"]
        lines += [f"# configurations {', '.join(self.configurations)}"] if self.configurations else []
        lines += [f"# {self.failure_summary}"] if self.failure_summary else []
        return "\n".join([*lines, print_graph(self.graph, full=True), ""])


def parse_case(text: str) -> FuzzCase:
    """Parse a case; a graph without comments runs with seed 0 in every configuration.  Raises ParseError."""
    comments = dict(re.findall(r"^# (inputs|configurations) (.*)$", text, re.MULTILINE))
    summary = next((line[2:] for line in text.splitlines() if re.match(r"# \S+ \(.*\):", line)), "")
    names = tuple(c.strip() for c in comments.get("configurations", "").split(",") if c.strip())
    seed = comments.get("inputs", "0").strip()
    return FuzzCase(parse_graph(text), int(seed) if seed.isdigit() else 0, names, summary)


def read_case(path: Path) -> FuzzCase:
    return parse_case(path.read_text(encoding="utf-8"))


def check_text(text: str) -> CheckOutcome:
    """Parse and run a case, in a worker process."""
    return parse_case(text).check()
