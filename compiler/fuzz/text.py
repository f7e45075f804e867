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

from compiler.fuzz.check import WAYS, Failure, Outcome, check
from compiler.ir.graph import Graph
from compiler.ir.parser import parse_graph
from compiler.ir.printer import print_graph


@dataclass(frozen=True)
class Case:
    """A graph, the seed of its inputs, and the ways in which to run it (none named: all)."""

    graph: Graph
    seed: int
    ways: tuple[str, ...] = ()
    remark: str = ""

    def check(self) -> Outcome:
        """Whether it fails."""
        return check(self.graph, self.seed, [WAYS[w] for w in self.ways if w in WAYS] or tuple(WAYS.values()))

    def failing(self, failure: Failure) -> Case:
        """The same with the way that `failure` happened in, and what it says."""
        ways = (failure.way,) if failure.way in WAYS else self.ways
        return Case(self.graph, self.seed, ways, str(failure).split("\n")[0][:200])

    def __str__(self) -> str:
        lines = [f"# inputs {self.seed}"]
        lines += [f"# ways {', '.join(self.ways)}"] if self.ways else []
        lines += [f"# {self.remark}"] if self.remark else []
        return "\n".join([*lines, print_graph(self.graph, full=True), ""])


def parse_case(text: str) -> Case:
    """The case that `text` spells; a plain graph is run on inputs 0 in every way.  Raises ParseError."""
    notes = dict(re.findall(r"^# (inputs|ways) (.*)$", text, re.MULTILINE))
    remark = next((line[2:] for line in text.splitlines() if re.match(r"# \S+ \(.*\):", line)), "")
    ways = tuple(w.strip() for w in notes.get("ways", "").split(",") if w.strip())
    seed = notes.get("inputs", "0").strip()
    return Case(parse_graph(text), int(seed) if seed.isdigit() else 0, ways, remark)


def read_case(path: Path) -> Case:
    return parse_case(path.read_text(encoding="utf-8"))


def check_text(text: str) -> Outcome:
    """Whether the case that `text` spells fails: the work of a worker."""
    return parse_case(text).check()
