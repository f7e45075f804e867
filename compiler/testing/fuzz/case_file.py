"""A failing graph as a short file: the graph's text, and in comments how to see it fail.

# inputs 17
# ways fused x86-64-v3
# wrong (fused x86-64-v3): output 0: 1 of 4 elements are wrong; ...
graph @fuzz17(%x0: f32[4]) { ... }
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from compiler.ir.graph.graph import Graph
from compiler.ir.text.graph_parser import parse_graph
from compiler.ir.text.graph_printer import print_graph
from compiler.testing.fuzz.check import CONFIGURATIONS, CheckOutcome, Failure, check_graph


@dataclass(frozen=True)
class FuzzCase:
    """A graph, the seed of its inputs, and the ways in which to run it (none named: all)."""

    graph: Graph
    seed: int
    configurations: tuple[str, ...] = ()
    failure_summary: str = ""

    def check(self) -> CheckOutcome:
        """Whether it fails."""
        return check_graph(
            self.graph,
            self.seed,
            [CONFIGURATIONS[w] for w in self.configurations if w in CONFIGURATIONS] or tuple(CONFIGURATIONS.values()),
        )

    def with_failure(self, failure: Failure) -> FuzzCase:
        """The same with the way that `failure` happened in, and what it says."""
        ways = (failure.configuration,) if failure.configuration in CONFIGURATIONS else self.configurations
        return FuzzCase(self.graph, self.seed, ways, str(failure).split("\n")[0][:200])

    def __str__(self) -> str:
        lines = [f"# inputs {self.seed}"]
        lines += [f"# ways {', '.join(self.configurations)}"] if self.configurations else []
        lines += [f"# {self.failure_summary}"] if self.failure_summary else []
        return "\n".join([*lines, print_graph(self.graph, full=True), ""])


def parse_case(text: str) -> FuzzCase:
    """The case that `text` spells; a plain graph is run on inputs 0 in every way.  Raises ParseError."""
    notes = dict(re.findall(r"^# (inputs|ways) (.*)$", text, re.MULTILINE))
    remark = next((line[2:] for line in text.splitlines() if re.match(r"# \S+ \(.*\):", line)), "")
    ways = tuple(w.strip() for w in notes.get("ways", "").split(",") if w.strip())
    seed = notes.get("inputs", "0").strip()
    return FuzzCase(parse_graph(text), int(seed) if seed.isdigit() else 0, ways, remark)


def read_case(path: Path) -> FuzzCase:
    return parse_case(path.read_text(encoding="utf-8"))


def check_text(text: str) -> CheckOutcome:
    """Whether the case that `text` spells fails: the work of a worker."""
    return parse_case(text).check()
