"""Rewrites inside a pass: the IR after each of them, as the pass shows it or from runs of the pass that stop there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from compiler.errors import TilewrightError
from compiler.ir.graph.graph import Graph
from compiler.ir.graph.structure import Recurrence
from compiler.ir.text.graph_printer import GraphPrinter
from compiler.ir.text.ir_text import AnyIR, print_ir
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context
from compiler.passes.instrument import PassRun, ir_size
from compiler.passes.manager import run_on_nested_graphs
from compiler.passes.remark import Remark, Remarks
from compiler.report.explore.line_delta import Hunk, line_delta
from compiler.report.explore.origins import OriginLoc, origin_name, subject_of
from compiler.report.explore.page_data import Rewrite

MAX_OFFERED, MAX_RERUN = 1_000_000, 60_000
"""Most nodes or statements that are visited to show the rewrites of one pass: in states that it offers, and in further runs."""

MAX_SUBJECTS = 4
"""Most subjects of a step of several rewrites that are named."""


class PagePrinter:
    """Printer of IR as the page shows it; states of one graph share the texts of their kernels."""

    def __init__(self) -> None:
        self.graphs = GraphPrinter(name_of=origin_name)

    def lines(self, ir: AnyIR) -> list[str]:
        """Return the lines of the text of IR."""
        return (self.graphs.print(ir) if isinstance(ir, Graph) else print_ir(ir)).splitlines()


def printed_lines(ir: AnyIR) -> list[str]:
    """Return the lines of the text of IR as the page shows it."""
    return PagePrinter().lines(ir)


@dataclass
class RewriteSteps:
    """Steps inside a run of a pass in a compilation with `context`; each makes one rewrite, or several if they are too many.

    A pass is a pure function, so the IR after k rewrites is what it makes of its input if it may make k.  It is built so where the
    pass does not offer it while it runs.
    """

    run: PassRun
    context: Context
    steps: list[Rewrite] = field(default_factory=list)
    _printer: PagePrinter = field(default_factory=PagePrinter)

    def make(self) -> None:
        """Add all steps; TilewrightError if the pass fails where it stops early."""
        self._text, self._done = self._printer.lines(self.run.before), 0
        self._add(0, self._limited_run(0))
        offered = set[int]()
        self._observe(lambda count, state: offered.add(count))
        count, size = len(self.run.rewrites), max(1, ir_size(self.run.before))
        self._ends = {
            count,
            *some([k for k in range(1, count) if k in offered], MAX_OFFERED // size),
            *some([k for k in range(1, count) if k not in offered], MAX_RERUN // size),
        }
        self._observe(self._offer)
        self._fill(count + 1)

    def largest(self) -> int:
        """Return the most rewrites that a step makes."""
        ends = sorted({0, *self._ends})
        return max(b - a for a, b in pairwise(ends))

    def _observe(self, visit: Callable[[int, Callable[[], AnyIR]], object]) -> None:
        """Run the pass again, and visit the IR that it offers after some numbers of rewrites; that of loop bodies is no whole."""
        if self.run.after is not None and not has_loops(self.run.before):
            made = list[Remark]()
            self._rerun(rewrites=made, on_state=lambda state: visit(len(made), state))

    def _offer(self, count: int, state: Callable[[], AnyIR]) -> None:
        """Add the steps to the IR after `count` rewrites, unless they are there."""
        self._fill(count)
        if count > self._done and count in self._ends:
            self._add(count, state())

    def _fill(self, end: int) -> None:
        """Add the steps that are missing before that to `end` rewrites, by runs that stop there."""
        for k in range(self._done + 1, end):
            if k in self._ends:
                self._add(k, self._limited_run(k))

    def _add(self, count: int, state: AnyIR) -> None:
        """Add the step to `state`, the IR after `count` rewrites; to that after none, if the pass changes something in any case."""
        new = self._printer.lines(state)
        delta, self._text = line_delta(self._text, new), new
        if count:
            self.steps.append(joint_rewrite(self.run.rewrites[self._done : count], self.run.made + count, delta))
        elif delta:
            self.steps.append(Rewrite(0, "what the pass does in any case", "", [], delta))
        self._done = count

    def _limited_run(self, limit: int) -> AnyIR:
        return self._rerun(rewrite_limit=limit)

    def _rerun(self, **changes: Any) -> AnyIR:
        """Run the pass again, with a context that has `changes` and remembers nothing of the first run but costs."""
        before = self.run.before
        name = before.name if isinstance(before, Kernel) else ""
        forgotten = {"refuses_required": True, "rewrites": [], "remarks": Remarks(), "alternatives": []}
        return run_on_nested_graphs(
            self.run.pass_, before, replace(self.context, kernel=name, **{**forgotten, **changes})
        )


def rewrites_of(run: PassRun, context: Context) -> tuple[list[Rewrite], str]:
    """Return the rewrites of a run of a pass, each as a step, and what is left out and why ("": nothing).

    A step makes several rewrites if they are many and the IR is large.  `context` is that of the recorded compilation.
    """
    steps = RewriteSteps(run, context)
    if not run.rewrites:
        return [], ""
    try:
        steps.make()
    except TilewrightError as error:
        return steps.steps, f"not shown: the other rewrites, since the pass fails where it stops early: {error}"
    most = steps.largest()
    return steps.steps, f"each step makes up to {most} rewrites of this large graph" if most > 1 else ""


def some(numbers: Sequence[int], most: int) -> Sequence[int]:
    """Return numbers at equal distances among `numbers`, `most` at most but one at least."""
    return numbers[:: -(-len(numbers) // max(1, most)) or 1]


def has_loops(ir: AnyIR) -> bool:
    """Return True for a graph with the bodies of loops in it, which passes visit one after the other."""
    return isinstance(ir, Graph) and any(isinstance(n.structure, Recurrence) for n in ir.nodes)


def joint_rewrite(made: Sequence[Remark], number: int, delta: list[Hunk]) -> Rewrite:
    """Return rewrites, the last of them with this number, as one step that changes the text by `delta`."""
    subjects = [subject_of(r) for r in made]
    more = f" and {len(made) - MAX_SUBJECTS} more" if len(made) > MAX_SUBJECTS else ""
    origins = sorted({r.loc.number for r in made if isinstance(r.loc, OriginLoc)})
    messages = "; ".join(dict.fromkeys(r.message for r in made))
    return Rewrite(number, messages, ", ".join(filter(None, subjects[:MAX_SUBJECTS])) + more, origins, delta)
