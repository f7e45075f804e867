"""Schedules as text: the directives and passes that make a scheduled kernel of a lowered one.

schedules ::= schedule*
schedule  ::= "schedule" @kernel "{" step* "}"
step      ::= directive                       a decision (see compiler.passes.schedule.directives)
            | pass                            the compiler decides, as in `cache-operand` or `peel{max-expanded-ops=64}`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.errors import PassError, did_you_mean
from compiler.ir.text.lexer import Cursor, format_name
from compiler.ir.tile.kernel import Kernel
from compiler.passes.base import Context, Pass
from compiler.passes.manager import PassInstrument, run_pass
from compiler.passes.pipeline_text import Pipeline, available_passes, parse_pipeline
from compiler.passes.schedule.directives import READERS

_PASS = re.compile(r"([\w-]+)(\s*\{[^}]*\})?")


@dataclass(frozen=True)
class Schedule:
    """The steps from the kernel as it was lowered to the one that is run; `str` is its text."""

    kernel: str
    steps: Pipeline

    def __str__(self) -> str:
        return "\n".join([f"schedule {format_name('@', self.kernel)} {{", *(f"  {s}" for s in self.steps), "}"])

    def legalized(self, passes: str) -> Schedule:
        """Return the schedule with those of `passes` at its end that it does not name."""
        named = {s.name for s in self.steps}
        return Schedule(self.kernel, (*self.steps, *(p for p in parse_pipeline(passes) if p.name not in named)))

    def apply(self, kernel: Kernel, context: Context, instruments: Sequence[PassInstrument] = ()) -> Kernel:
        """Return the kernel after all steps; PassError names an illegal one, with the reason."""
        if kernel.name != self.kernel:
            raise PassError(f"this is a schedule of @{self.kernel}, not of @{kernel.name}")
        for step in self.steps:
            for instrument in instruments:
                instrument.before_pass(step, kernel, context)
            kernel = run_pass(step, kernel, context, instruments, f"schedule of @{kernel.name}, `{step}`")
        return kernel


def is_schedule(text: str) -> bool:
    """Return True if a text begins as schedules do, and not as IR."""
    return Cursor(text).next.text == "schedule"


def parse_schedules(text: str) -> dict[str, Schedule]:
    """Parse any number of schedules by the names of their kernels.  Raises ParseError, or PassError for an unknown pass."""
    c, schedules = Cursor(text), dict[str, Schedule]()
    while c.next.kind != "end":
        c.expect("schedule")
        at, steps = c.expect_kind("global", "the kernel's @name"), list[Pass[Kernel]]()
        c.expect("{")
        while not c.accept("}"):
            steps.append(_read_step(c))
        if schedules.setdefault(at.text, schedule := Schedule(at.text, tuple(steps))) is not schedule:
            raise c.error(f"{at} has two schedules", at)
    return schedules


def _read_step(c: Cursor) -> Pass[Kernel]:
    """Read a directive, or a pass as pipelines write it."""
    at = c.expect_kind("word", "a directive or a pass")
    match = _PASS.match(c.source.split("\n")[at.line - 1], at.column - 1)
    assert match
    name, passes = match[1], available_passes()
    if name in READERS and (c.next.kind == "value" or name not in passes):
        return READERS[name](c)
    if name not in passes or passes[name]().ir_type is not Kernel:
        words = [*READERS, *(n for n, make in passes.items() if make().ir_type is Kernel)]
        raise c.error(f"there is no directive and no pass over kernels called {name}{did_you_mean(name, words)}", at)
    while (c.next.line, c.next.column) <= (at.line, match.end()) and c.next.kind != "end":
        c.take()
    return parse_pipeline(match[0])[0]
